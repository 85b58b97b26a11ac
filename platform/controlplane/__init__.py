"""The composition root: settings, wiring, ASGI, Celery, the admin site and the commands. Imports every room."""
