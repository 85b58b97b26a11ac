"""The load generator: raw HTTP/1.1 over TCP or a Unix socket, one kept-open connection for each open request.

Called by the benches. It only notes when bytes came while the clock runs and reads them afterwards (`sse`), so it costs
the two cores little and costs both sides of a comparison the same. Every request has a deadline.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, cast

from infra.bench.sse import BadAnswer, Head, Part, is_whole, read_body, read_events, read_head

_TAIL_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One side of a comparison: where it listens, what it is called there, and who asks."""

    name: str
    model: str
    unix_socket: Path | None = None
    host: str = "127.0.0.1"
    port: int = 0
    api_key: str = ""

    def request(self, *, method: str, path: str, body: bytes = b"") -> bytes:
        """The bytes of one HTTP/1.1 request."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.host}", "Accept: */*"]
        if self.api_key:
            lines.append(f"Authorization: Bearer {self.api_key}")
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode() + body


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One streamed answer. Times in seconds since the last byte of the request was written.

    `token_times` holds the arrival of each event that brought text; `counts` is the engine's usage, never a count of
    events. `failure` is empty when the stream ended as it should, with `[DONE]`.
    """

    request_id: str
    status: int
    text: str
    finish_reason: str
    counts: dict[str, Any]
    token_times: tuple[float, ...]
    total: float
    failure: str
    steps_ms: dict[str, float] = field(default_factory=dict)  # where Weir says the time went; empty for an engine

    @property
    def ttft(self) -> float:
        """Time to the first text. Raises IndexError when none came."""
        return self.token_times[0]

    @property
    def gaps(self) -> list[float]:
        """Times between neighbouring events with text."""
        return [after - before for before, after in itertools.pairwise(self.token_times)]

    @property
    def gap_per_token(self) -> float:
        """Mean time between tokens, also where an event brings several; 0 for an answer of one token."""
        return (self.token_times[-1] - self.token_times[0]) / max(self.completion_tokens - 1, 1)

    @property
    def completion_tokens(self) -> int:
        return int(self.counts.get("completion_tokens", 0))

    @property
    def prompt_tokens(self) -> int:
        return int(self.counts.get("prompt_tokens", 0))

    @property
    def cached_tokens(self) -> int:
        return int((self.counts.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


class Refused(Exception):
    """The server answered, but not with what was asked."""


@dataclass(slots=True)
class _Recording(asyncio.Protocol):
    """Notes what comes and when, until the answer is whole."""

    transport: asyncio.Transport | None = None
    parts: list[Part] = field(default_factory=list)
    head: Head | None = None
    received: int = 0
    done: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is none of asyncio's classes

    def data_received(self, data: bytes) -> None:
        self.parts.append(Part(perf_counter(), data))
        self.received += len(data)
        try:
            if self.head is None:
                self.head = read_head(b"".join(part.data for part in self.parts))
            if self.head is None:
                return
            tail = data if len(data) >= _TAIL_BYTES else b"".join(part.data for part in self.parts[-_TAIL_BYTES:])
            if is_whole(head=self.head, received=self.received, tail=tail):
                self._finish(None)
        except BadAnswer as error:
            self._finish(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._finish(exc or ConnectionResetError("the server closed the connection"))

    def _finish(self, error: Exception | None) -> None:
        if self.done is None or self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


class Connection:
    """One kept-open connection to a target; one request at a time. Opened again when the server closed it."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._protocol = _Recording()

    @property
    def has_heard(self) -> bool:
        """True once the first bytes of the answer came."""
        return bool(self._protocol.parts)

    async def exchange(self, request: bytes, *, deadline: float) -> tuple[float, Head, list[Part]]:
        """Sends `request`; the time it was written, and the answer. Raises OSError, BadAnswer, TimeoutError."""
        async with asyncio.timeout(deadline):
            protocol, transport = await self._ready()
            protocol.parts, protocol.head, protocol.received = [], None, 0
            protocol.done = asyncio.get_running_loop().create_future()
            written = perf_counter()
            transport.write(request)
            try:
                await protocol.done
            except asyncio.CancelledError:
                transport.abort()  # the rest of this answer must not reach the next request
                raise
            head = read_head(b"".join(part.data for part in protocol.parts))
            if head is None:
                raise BadAnswer("the answer ends within its head")
            return written, head, protocol.parts

    async def _ready(self) -> tuple[_Recording, asyncio.Transport]:
        transport = self._protocol.transport
        if transport is not None and not transport.is_closing():
            return self._protocol, transport
        loop = asyncio.get_running_loop()
        target = self.target
        if target.unix_socket is not None:
            made, self._protocol = await loop.create_unix_connection(_Recording, str(target.unix_socket))
        else:
            made, self._protocol = await loop.create_connection(_Recording, target.host, target.port)
        return self._protocol, made

    def close(self) -> None:
        if self._protocol.transport is not None:
            self._protocol.transport.close()


@asynccontextmanager
async def open_connections(target: Target, *, count: int) -> AsyncIterator[list[Connection]]:
    """`count` connections, closed at the end."""
    connections = [Connection(target) for _ in range(count)]
    try:
        yield connections
    finally:
        for connection in connections:
            connection.close()


async def get_json(target: Target, path: str, *, deadline: float = 10.0) -> Any:
    """The JSON document at `path`. Raises Refused, OSError, TimeoutError."""
    return json.loads(await get_text(target, path, deadline=deadline))


async def get_text(target: Target, path: str, *, deadline: float = 10.0) -> bytes:
    """The body at `path`. Raises Refused, OSError, TimeoutError."""
    async with open_connections(target, count=1) as (connection,):
        _, head, parts = await connection.exchange(target.request(method="GET", path=path), deadline=deadline)
    body = b"".join(part.data for part in read_body(parts, head=head))
    if head.status != 200:
        raise Refused(f"{target.name} answered {head.status} to {path}: {body[:300]!r}")
    return body


async def stream_chat(connection: Connection, *, prompt: str, max_tokens: int, deadline: float) -> Answer:
    """One streamed chat at temperature 0, timed. A failure is told in the answer, not raised."""
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens, "temperature": 0}
    return await stream_body(connection, body=body, deadline=deadline)


async def stream_body(connection: Connection, *, body: Mapping[str, Any], deadline: float) -> Answer:
    """One streamed chat with the given fields, timed. A failure is told in the answer, not raised."""
    body = {"model": connection.target.model, **body, "stream": True, "stream_options": {"include_usage": True}}
    request = connection.target.request(
        method="POST", path="/v1/chat/completions", body=json.dumps(body, ensure_ascii=False).encode()
    )
    try:
        written, head, parts = await connection.exchange(request, deadline=deadline)
        return read_answer(written=written, head=head, parts=parts)
    except TimeoutError:
        return failed(f"no whole answer within {deadline:.0f} s")
    except (OSError, BadAnswer) as error:
        return failed(f"{type(error).__name__}: {error}")


def read_answer(*, written: float, head: Head, parts: Sequence[Part]) -> Answer:
    """An answer from what was recorded. Raises BadAnswer when it is not a whole HTTP answer."""
    body = read_body(parts, head=head)
    total = parts[-1].at - written
    if head.status != 200:
        text = b"".join(part.data for part in body).decode(errors="replace")
        return failed(f"status {head.status}: {text[:300]}", status=head.status, total=total)
    reading = _Reading()
    for event in read_events(body):
        reading.take(at=event.at - written, data=event.data)
    failure = reading.failure or ("" if reading.done else "the stream ended without [DONE]")
    return Answer(
        request_id=reading.request_id,
        status=head.status,
        text="".join(reading.texts),
        finish_reason=reading.finish_reason,
        counts=reading.counts,
        token_times=tuple(reading.times),
        total=total,
        steps_ms=reading.steps_ms,
        failure=failure or ("" if reading.times else "no text came"),
    )


def failed(reason: str, *, status: int = 0, total: float = 0.0) -> Answer:
    """An answer that tells why there is none."""
    return Answer(
        request_id="",
        status=status,
        text="",
        finish_reason="",
        counts={},
        token_times=(),
        total=total,
        failure=reason,
    )


@dataclass(slots=True)
class _Reading:
    request_id: str = ""
    texts: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    finish_reason: str = ""
    counts: dict[str, Any] = field(default_factory=dict)
    steps_ms: dict[str, float] = field(default_factory=dict)
    done: bool = False
    failure: str = ""

    def take(self, *, at: float, data: bytes) -> None:
        if data == b"[DONE]":
            self.done = True
            return
        try:
            document = json.loads(data)
        except ValueError:
            self.failure = f"not JSON: {data[:100]!r}"
            return
        if "error" in document:
            self.failure = f"error frame: {json.dumps(document['error'])[:300]}"
            return
        self.request_id = document.get("id", self.request_id)
        self.counts = document.get("usage") or self.counts
        self.steps_ms = document.get("weir", {}).get("timings", self.steps_ms)
        for choice in document.get("choices", []):
            text = choice.get("delta", {}).get("content") or ""
            if text:
                self.texts.append(text)
                self.times.append(at)
            self.finish_reason = choice.get("finish_reason") or self.finish_reason


async def run_closed_loop(
    connections: Sequence[Connection], *, prompts: Sequence[str], max_tokens: int, deadline: float
) -> tuple[list[Answer], float]:
    """All prompts, as many at once as there are connections; the answers in order, and the seconds it took."""
    answers: dict[int, Answer] = {}
    waiting = iter(enumerate(prompts))

    async def work(connection: Connection) -> None:
        for index, prompt in waiting:
            answers[index] = await stream_chat(connection, prompt=prompt, max_tokens=max_tokens, deadline=deadline)

    began = perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for connection in connections:
            tasks.create_task(work(connection))
    return [answers[index] for index in range(len(prompts))], perf_counter() - began
