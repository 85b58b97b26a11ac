"""Reads HTTP/1 answers from bytes, several in a row (RFC 9112), and server-sent events (WHATWG HTML, 9.2). Pure.

Called by `wire.py` and by the checks of streams. Invariant: what is not an answer is kept apart and shown, not guessed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from infra.conformance.case import Answer

_NO_BODY = frozenset({204, 304})
_SWITCHED = 101


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """Final answers, interim statuses (1xx) with the headers of a 101, and the bytes after them."""

    answers: tuple[Answer, ...]
    interim: tuple[int, ...]
    rest: bytes
    switched: tuple[tuple[str, str], ...] = ()

    @property
    def whole(self) -> int:
        """How many answers are complete."""
        return sum(answer.complete for answer in self.answers)


def parse_answers(data: bytes, *, ended: bool, methods: tuple[str, ...] = ()) -> Parsed:
    """All answers in `data`; `ended`: the server closed. The answer to the nth request is read by its method."""
    answers: list[Answer] = []
    interim: list[int] = []
    switched: tuple[tuple[str, str], ...] = ()
    while data:
        head, separator, after = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        if not separator or not version.startswith("HTTP/") or not rest[:3].isdigit():
            break
        status = int(rest[:3])
        headers = tuple((name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in lines))
        if 100 <= status < 200:
            interim.append(status)
            switched = headers if status == _SWITCHED else switched
            data = after
            continue
        method = methods[len(answers)] if len(answers) < len(methods) else ""
        answer, data = _with_body(status, version, headers, after, ended=ended, bodiless=method == "HEAD")
        answers.append(answer)
        if not answer.complete:
            break
    return Parsed(answers=tuple(answers), interim=tuple(interim), rest=data, switched=switched)


def _with_body(
    status: int, version: str, headers: tuple[tuple[str, str], ...], after: bytes, *, ended: bool, bodiless: bool
) -> tuple[Answer, bytes]:
    empty = Answer(status=status, headers=headers, body=b"", version=version)
    if bodiless or status in _NO_BODY:
        return empty, after
    if "chunked" in (empty.header("transfer-encoding") or "").lower():
        body, pieces, rest = _unchunk(after)
        complete = rest is not None
        answer = Answer(status=status, headers=headers, body=body, complete=complete, pieces=pieces, version=version)
        return answer, rest or b""
    length = empty.header("content-length")
    if length is None or not length.isdigit():
        return Answer(status=status, headers=headers, body=after, complete=ended, version=version), b""
    size = int(length)
    complete = len(after) >= size
    return Answer(status=status, headers=headers, body=after[:size], complete=complete, version=version), after[size:]


def _unchunk(data: bytes) -> tuple[bytes, int, bytes | None]:
    """The body, the number of its chunks, and what follows; None while the last chunk has not come."""
    pieces: list[bytes] = []
    while True:
        line, separator, after = data.partition(b"\r\n")
        try:
            size = int(line.split(b";")[0], 16)
        except ValueError:
            size = -1
        if not separator or size < 0 or len(after) < size + 2:
            return b"".join(pieces), len(pieces), None
        if size == 0:
            return b"".join(pieces), len(pieces), after.partition(b"\r\n")[2]
        pieces.append(after[:size])
        data = after[size + 2 :]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One block of an event stream: its fields as given, and the text of its data; None when it has no data."""

    fields: tuple[tuple[str, str], ...]
    data: str | None


def parse_events(body: str) -> Iterator[Event]:
    """Blocks between empty lines. Comments are no field; a block of comments alone is not yielded."""
    fields: list[tuple[str, str]] = []
    for line in _lines(body):
        if line == "":
            if fields:
                yield _event(fields)
            fields = []
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            fields.append((name, value.removeprefix(" ")))
    if fields:
        yield _event(fields)


def _lines(body: str) -> list[str]:
    """The lines; what follows the last line end is a line only when it is not empty."""
    lines = body.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _event(fields: list[tuple[str, str]]) -> Event:
    data = [value for name, value in fields if name == "data"]
    return Event(fields=tuple(fields), data="\n".join(data) if data else None)


def sdk_sees(body: str) -> list[str]:
    """The data that OpenAI's Python SDK hands to its JSON parser, also for blocks without data after an `id`.

    Its decoder (openai/_streaming.py, SSEDecoder) keeps the last id and dispatches every block once there is one.
    """
    dispatched: list[str] = []
    data: list[str] = []
    last_id, event = "", ""
    for line in _lines(body):
        if line == "":
            if data or last_id or event:
                dispatched.append("\n".join(data))
            data, event = [], ""
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "data":
                data.append(value)
            elif name == "id":
                last_id = value
            elif name == "event":
                event = value
    # What stands after the last empty line is never dispatched, and the end of the stream adds nothing.
    return dispatched
