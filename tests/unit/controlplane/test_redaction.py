"""Log lines without secrets: keys and parameters called like secrets are cut, everything else stays."""

import logging
import sys

import pytest

from contracts.text import redacted
from controlplane.redaction import Redacted, Redacting
from tenants.auth.keys import mint

KEY = mint()


class TestRedacted:
    @pytest.mark.parametrize(
        ("text", "left"),
        [
            (f'1.2.3.4 - "WebSocket /v1/realtime?token={KEY}" [accepted]', '"WebSocket /v1/realtime?token=…"'),
            (f"GET /x?a=1&api_key={KEY}&b=2", "a=1&api_key=…&b=2"),
            (f"bad header Bearer {KEY}, twice {KEY}", "bad header Bearer weir_…, twice weir_…"),
            ("?password=hunter2 done", "?password=… done"),
            ("monkey=banana", "key=…"),
        ],
        ids=["the address of a WebSocket", "a query", "a header", "a password", "a name that ends alike"],
    )
    def test_cuts_what_is_secret(self, text: str, left: str) -> None:
        assert left in redacted(text)
        assert KEY not in redacted(text)

    @pytest.mark.parametrize("text", ["weir_…wxyz", "weir_ is the prefix", "tokens per minute: 5", "100 % of it"])
    def test_leaves_the_rest(self, text: str) -> None:
        assert redacted(text) == text


class TestLines:
    def record(self, message: str, *args: object) -> logging.LogRecord:
        return logging.LogRecord("uvicorn.error", logging.INFO, "x.py", 1, message, args, None)

    def test_a_line_of_another_s_handler_is_cut_and_still_formats(self) -> None:
        record = self.record('%s - "WebSocket %s" 100%% [accepted]', "1.2.3.4", f"/x?token={KEY}")
        assert Redacted().filter(record)
        assert record.getMessage() == '1.2.3.4 - "WebSocket /x?token=…" 100% [accepted]'

    def test_a_traceback_is_cut_too(self) -> None:
        try:
            raise ValueError(f"no such key {KEY}")
        except ValueError:
            record = self.record("it failed")
            record.exc_info = sys.exc_info()
        line = Redacting("%(message)s").format(record)
        assert "ValueError: no such key weir_…" in line
        assert KEY not in line
