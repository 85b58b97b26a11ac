"""Benches: run by `manage.py bench NAME`. Each measures one thing, prints one JSON object a line, and its record."""
