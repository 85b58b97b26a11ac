"""No API key is in a log: the formatter of our lines, and a filter for who writes by itself (`settings.LOGGING`)."""

import logging

from contracts.text import redacted


class Redacting(logging.Formatter):
    """The whole line, its traceback too, without secrets that a client put where they do not belong."""

    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))


class Redacted(logging.Filter):
    """The same for loggers that write by themselves: uvicorn names a WebSocket's address with its query."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Never drops a record."""
        said = record.getMessage()
        cleaned = redacted(said)
        if cleaned != said:
            record.msg, record.args = cleaned, ()
        return True
