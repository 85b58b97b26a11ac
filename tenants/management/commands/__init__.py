"""Found by name by `manage.py`."""
