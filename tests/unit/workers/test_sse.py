"""The event stream grammar, however the bytes are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.engines import sse
from workers.engines.sse import EventReader, EventTooLarge

STREAM = (
    "\ufeffdata: one\n\n: a comment\n\ndata:two\r\ndata: lines\r\n\r\nevent: x\rid: 7\rdata: 🌊 水\r\rdata\n\n"
    "retry: 5\n\ndata: [DONE]\n\ndata: never ended"
).encode()
EVENTS = [b"one", b"two\nlines", "🌊 水".encode(), b"", b"[DONE]"]


class TestEventReader:
    def test_reads_every_line_end_comment_and_field(self):
        assert EventReader().feed(STREAM) == EVENTS

    @given(st.lists(st.integers(min_value=0, max_value=len(STREAM)), max_size=12))
    def test_gives_the_same_events_for_every_cut(self, cuts):
        edges = [0, *sorted(cuts), len(STREAM)]
        reader = EventReader()
        pieces = [STREAM[begin:end] for begin, end in pairwise(edges)]
        assert [event for piece in pieces for event in reader.feed(piece)] == EVENTS

    def test_gives_the_same_events_byte_by_byte(self):
        reader = EventReader()
        assert [event for byte in STREAM for event in reader.feed(bytes([byte]))] == EVENTS

    def test_refuses_an_event_without_end(self, monkeypatch):
        monkeypatch.setattr(sse, "EVENT_BYTES_MAX", 100)
        reader = EventReader()
        with pytest.raises(EventTooLarge):
            reader.feed(b"data: 1234567890\n" * 20)
