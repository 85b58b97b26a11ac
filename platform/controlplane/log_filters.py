"""Filters of log records. Named in `settings.LOGGING`."""

import logging


class ClientMistakes(logging.Filter):
    """Keeps what a client did wrong to one line: Django logs some of it with a traceback, as if it were ours."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Never drops a record."""
        refused = record.name == "django.request" and getattr(record, "status_code", 500) < 500
        if refused or record.name.startswith("django.security"):
            record.exc_info = record.exc_text = None
        return True
