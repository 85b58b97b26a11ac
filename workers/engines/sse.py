"""Reads a server-sent event stream by the WHATWG grammar (html.spec.whatwg.org, 9.2.6). Pure; called by `http`.

Invariant: the events do not depend on how the bytes were cut. Only `data` matters here; other fields are ignored.
"""

import re

EVENT_BYTES_MAX = 8 * 1024 * 1024
_LINE_END = re.compile(rb"\r\n|\n|\r")


class EventTooLarge(ValueError):
    """One event is larger than `EVENT_BYTES_MAX`."""


class EventReader:
    """Feed bytes, take the data of each complete event."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0
        self._begun = False

    def feed(self, piece: bytes) -> list[bytes]:
        """Data of the events that `piece` completes. Raises EventTooLarge."""
        buffer = self._rest + piece
        if not self._begun and buffer:
            if b"\xef\xbb\xbf".startswith(buffer[:3]) and len(buffer) < 3:
                self._rest = buffer
                return []
            buffer = buffer.removeprefix(b"\xef\xbb\xbf")
            self._begun = True
        events: list[bytes] = []
        position = 0
        for end in _LINE_END.finditer(buffer):
            if end.group() == b"\r" and end.end() == len(buffer):
                break  # it may be half of a CRLF
            self._line(buffer[position : end.start()], events)
            position = end.end()
        self._rest = buffer[position:]
        if self._size + len(self._rest) > EVENT_BYTES_MAX:
            raise EventTooLarge(f"an event is larger than {EVENT_BYTES_MAX} bytes")
        return events

    def _line(self, line: bytes, events: list[bytes]) -> None:
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
            self._data.clear()
            self._size = 0
            return
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
            self._size += len(value)
