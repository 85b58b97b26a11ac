"""No API key is in a log: the formatter of our lines, and a filter for who writes by itself (`settings.LOGGING`)."""

import logging
import re

_KEY = re.compile(r"weir_[0-9A-Za-z]{20,}")
_PARAMETER = re.compile(r"((?:token|key|secret|password|authorization)=)[^&\s\"']+", re.IGNORECASE)


def redacted(text: str) -> str:
    """`text` without API keys, and without the values of parameters that are called like secrets."""
    return _PARAMETER.sub(r"\1…", _KEY.sub("weir_…", text))


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
