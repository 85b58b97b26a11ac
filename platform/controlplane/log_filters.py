"""Filters of log records. Named in `settings.LOGGING`."""

import logging

ARGUMENT_SHOWN_MAX = 200  # a path may be as long as a request's head


class ClientMistakes(logging.Filter):
    """Keeps what a client did wrong to one line, a warning: Django logs some of it as an error, with a traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Never drops a record."""
        refused = record.name == "django.request" and getattr(record, "status_code", 500) < 500
        if refused or record.name.startswith("django.security"):
            record.exc_info = record.exc_text = None
            record.levelno = min(record.levelno, logging.WARNING)
            record.levelname = logging.getLevelName(record.levelno)
            record.args = tuple(str(value)[:ARGUMENT_SHOWN_MAX] for value in record.args or ())
        return True
