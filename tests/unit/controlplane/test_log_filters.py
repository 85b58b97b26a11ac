"""A client's mistake in the log."""

import logging
import sys

import pytest

from controlplane.log_filters import ClientMistakes


def record(name: str, *, status: int | None = None, path: str = "/x") -> logging.LogRecord:
    try:
        raise ValueError("bad")
    except ValueError:
        made = logging.LogRecord(name, logging.ERROR, "views.py", 1, "Bad Request: %s", (path,), sys.exc_info())
    if status is not None:
        made.status_code = status
    return made


class TestClientMistakes:
    @pytest.mark.parametrize(("name", "status"), [("django.security.DisallowedHost", None), ("django.request", 400)])
    def test_are_one_short_line(self, name: str, status: int | None) -> None:
        shown = record(name, status=status, path="/" + "x" * 30_000)
        assert ClientMistakes().filter(shown)
        assert shown.exc_info is None
        assert (shown.levelno, shown.levelname) == (logging.WARNING, "WARNING")
        assert len(shown.getMessage()) < 300

    @pytest.mark.parametrize(("name", "status"), [("django.request", 500), ("weir.front", None)])
    def test_of_ours_keep_their_traceback(self, name: str, status: int | None) -> None:
        shown = record(name, status=status)
        assert ClientMistakes().filter(shown)
        assert shown.exc_info is not None
        assert shown.levelname == "ERROR"
