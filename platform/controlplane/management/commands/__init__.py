"""Commands: `manage.py NAME`."""
