"""One HTTP connection: uvicorn's httptools protocol with the deadlines and bounds that uvicorn leaves out. Step 1.

Named on uvicorn's command line (`--http gateway.edge.http:HttpProtocol`). Invariants: a connection that sends no whole
head in time is closed, and so is one that takes nothing of what is sent; a head has a size; connections are counted;
what is no HTTP/1.1 is answered by OpenAI's error object, never inside another request's answer, and logs nothing.
"""

import asyncio
import re
import resource
import socket
from functools import partial
from typing import Any, cast

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from contracts.errors import InvalidRequest, Unavailable, WeirError
from contracts.text import shown
from gateway.edge.half_close import HalfClose, can_tell, unread_bytes
from gateway.surface import limits
from gateway.surface.errors import (
    ExpectationFailed,
    HeadTooLarge,
    MethodUnknown,
    ReadTimeout,
    error_headers,
    error_object,
    status_of,
)
from stores.system import mint_request_id

LINGER_SECONDS = 2.0  # a refused client may still be sending: a reset would cost it the refusal
FILES_KEPT = 256  # for stores, logs and what else the process opens
RETRY_MS = 1_000
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
READ_FIRST_SECONDS = 0.001  # any time: the loop reads before it looks at its timers again
UNASKED_SECONDS = 1.0
_ONCE = {  # two would be read two ways
    name.lower().encode(): name for name in ("Content-Type", "Content-Encoding", "Idempotency-Key", "Last-Event-ID")
}
_VERSIONS = ("1.0", "1.1")  # the parser takes 0.9 and 2.0 too
_REQUEST_LINE = re.compile(rb"(?:\r?\n)*([!#$%&'*+.^_`|~0-9A-Za-z-]+) [!-~]+ HTTP/1\.[01]\r?\n")
_HOST = re.compile(rb"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")


class _Pipelined(Exception):
    """A request came before the answer to the one before it."""


def refusal(error: WeirError, *, extra: tuple[tuple[bytes, bytes], ...] = ()) -> bytes:
    """A whole HTTP answer that ends its connection."""
    body = orjson.dumps(error_object(error))
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
        (b"x-request-id", mint_request_id().encode("ascii")),
        *error_headers(error),
        *extra,
    ]
    head = b"".join(b"%b: %b\r\n" % header for header in headers)
    return STATUS_LINE[status_of(error)] + head + b"\r\n" + body


def drop_when_stalled(transport: asyncio.BaseTransport, *, seconds: float) -> None:
    """Lets the kernel end a connection whose peer acknowledges nothing, or keeps its window shut, for so long.

    TCP_USER_TIMEOUT (RFC 5482): the one deadline that also ends a socket that was closed with bytes left to send.
    """
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))


def _connections_max() -> int:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return limits.CONNECTIONS_MAX
    return max(1, min(limits.CONNECTIONS_MAX, files - FILES_KEPT))


class HttpProtocol(HttpToolsProtocol):
    """One connection. The numbers are the stated ones; a test may shorten them in a subclass."""

    head_seconds: float = limits.HEAD_SECONDS
    idle_seconds: float = limits.IDLE_SECONDS
    stall_seconds: float = limits.STALL_SECONDS
    connections_max: int = _connections_max()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.timeout_keep_alive = cast("int", self.idle_seconds)
        self._waiting = 0  # bytes since the last whole head, while no request runs
        self._in_body = False
        self._deadline: asyncio.TimerHandle | None = None
        self._deaf = False  # what still comes is not read
        self._problem: WeirError | _Pipelined | None = None
        self._half: HalfClose | None = None  # once the client sends no more and may still read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        drop_when_stalled(transport, seconds=self.stall_seconds)
        if len(self.connections) > self.connections_max:
            self._refuse(Unavailable("this gateway has as many connections as it takes", retry_after_ms=RETRY_MS))
        else:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        if self._half is not None:
            self._half.stop()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more: True keeps the connection for its answer (RFC 9112, section 9.6)."""
        if self._half is not None or self._deaf:
            return self._half is not None
        if not self._runs() or self.cycle.more_body:
            if self._waiting or self._runs():
                part = "body" if self._in_body else "headers"
                self._refuse(InvalidRequest("the request ended before it was whole", param=part, code="incomplete"))
            return False
        if not can_tell(self.transport):
            return False
        self.cycle.keep_alive = False
        if self.cycle.scope["http_version"] == "1.0":
            self._deadline = self.loop.call_later(UNASKED_SECONDS, self._head_was_silent)
        self._half = HalfClose(self.transport, loop=self.loop, question=self._question)
        return True

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._unset_keepalive_if_required()
        self._waiting += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
                early = data[upgrade.args[0] :]
                if early:  # frames of a client that does not wait for its handshake's answer
                    cast("asyncio.Protocol", self.transport.get_protocol()).data_received(early)
                return
        except httptools.HttpParserError as error:
            self._refuse(self._problem or _unparsed(error, data))
            return
        running = self._runs()
        if running and not self._in_body:
            self._waiting = 0
        elif self._waiting > limits.HEAD_BYTES_MAX and self._in_body and not running:
            self.transport.close()  # its answer is given; another would be taken for the next request's
        elif self._waiting > limits.HEAD_BYTES_MAX:  # a head, or trailers and chunk extensions without a body's byte
            self._refuse(_head_too_large())
        elif not running:
            self._expect_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header. A trailer is none, and is dropped (RFC 9110, section 6.5.1): it grants and frames nothing."""
        if not self._in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Raises what is wrong with the head; the parser hands it to `data_received` as an error of its own."""
        self._problem = self._wrong_with_head()
        if self._problem is not None:
            raise self._problem
        self._disarm()
        self._waiting = 0
        self._in_body = True
        if self.parser.get_http_version() == "1.0":  # it has no 1xx, so that what it expects counts for nothing
            self.expect_100_continue = False
        super().on_headers_complete()
        self.scope["state"]["unread"] = partial(unread_bytes, self.transport)
        self.scope["state"]["paused"] = self._is_paused
        if self.scope["http_version"] == "1.0" and self.cycle is not None:
            _end_by_close(self.cycle)

    def on_body(self, body: bytes) -> None:
        if self._runs():
            self._waiting = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._disarm()
        super().handle_websocket_upgrade()

    def _wrong_with_head(self) -> WeirError | _Pipelined | None:
        if self._runs():
            return _Pipelined()
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > limits.HEAD_BYTES_MAX or len(self.headers) > limits.HEADERS_MAX:
            return _head_too_large()
        version = self.parser.get_http_version()
        if version not in _VERSIONS:
            return InvalidRequest("this server speaks HTTP/1.1", param="version", code="invalid_http")
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) > 1 or (version == "1.1" and not hosts):
            return InvalidRequest("a request has one Host header", param="Host", code="invalid_host")
        if hosts and not _HOST.fullmatch(hosts[0]):
            return InvalidRequest("the Host header names no host", param="Host", code="invalid_host")
        upgrades = self.parser.should_upgrade() and self._should_upgrade()
        if upgrades and (version != "1.1" or self.parser.get_method() != b"GET"):
            return InvalidRequest(
                "a WebSocket is opened by GET over HTTP/1.1", param="Upgrade", code="invalid_handshake"
            )
        return _wrong_with_headers(self.headers, version=version)

    def _is_paused(self) -> bool:
        """Whether a send would wait for the client to take what was written before."""
        return bool(self.flow.write_paused)

    def _question(self) -> bytes:
        """What may stand here and means nothing: a 1xx before the head, later what the answer has between its parts."""
        cycle = self.cycle
        if not self._runs():
            return b""
        if not cycle.response_started:
            return b"" if cycle.scope["http_version"] == "1.0" else CONTINUE
        between: bytes = cycle.scope["state"].get("between", b"")
        return b"%x\r\n%b\r\n" % (len(between), between) if between and cycle.chunked_encoding else between

    def _head_was_silent(self) -> None:
        """HTTP/1.0 has no 1xx, so that nobody can be asked: without a head by now the client is taken for lost."""
        self._deadline = None
        if self._runs() and not self.cycle.response_started:
            self.transport.abort()

    def _runs(self) -> bool:
        """Whether a request of this connection is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_head(self) -> None:
        """The deadline of the next head, which no byte moves."""
        if self._deadline is None and not self._deaf and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self.head_seconds, self._head_is_late)

    def _head_is_late(self) -> None:
        """What came in time is read first: a loop that was busy runs its timers before it reads (libuv's order)."""
        self._deadline = self.loop.call_later(READ_FIRST_SECONDS, self._end_late_head)

    def _end_late_head(self) -> None:
        self._deadline = None
        if self._waiting == 0 or self._in_body:  # opened ahead of need and never used; or a body after its answer
            self.transport.close()
        else:
            late = f"the headers did not arrive within {self.head_seconds:g} seconds"
            self._refuse(ReadTimeout(late, param="headers"))

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, problem: WeirError | _Pipelined) -> None:
        """Reads no more. The request under way gets its own answer; the connection ends after it."""
        self._deaf = True
        self._disarm()
        if self._runs():
            if not self.cycle.more_body:  # only what came after it is wrong: it may be sent again elsewhere
                self.cycle.keep_alive = False
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.close()
                return
        if isinstance(problem, WeirError):
            self.transport.write(refusal(problem))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)


def _end_by_close(cycle: RequestResponseCycle) -> None:
    """Sends what has no length until the connection closes: HTTP/1.0 knows no chunks (RFC 9112, section 6.1)."""
    framed = cycle.send
    unframed = False

    async def send(message: Any) -> None:
        nonlocal unframed
        if message["type"] == "http.response.start":
            unframed = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
            if unframed:
                cycle.chunked_encoding = False
        elif unframed:
            cycle.expected_content_length = len(message.get("body", b""))
        await framed(message)

    cycle.send = send  # type: ignore[method-assign]


def _unparsed(error: httptools.HttpParserError, data: bytes) -> WeirError:
    """Why the parser gave up: on a method that it does not know, in a request line that is else one, or on anything."""
    if "Invalid method" in str(error) or isinstance(error, httptools.HttpParserInvalidMethodError):
        line = _REQUEST_LINE.match(data)
        if line is not None:
            return MethodUnknown(f"no path of this server takes {shown(line[1].decode())}")
    return InvalidRequest("the request is not valid HTTP/1.1", code="invalid_http")


def _wrong_with_headers(headers: list[tuple[bytes, bytes]], *, version: str) -> WeirError | None:
    names = [name for name, _ in headers]
    twice = next((written for name, written in _ONCE.items() if names.count(name) > 1), None)
    if twice is not None:
        return InvalidRequest(f"the header {twice} is given twice", param=twice, code="duplicate_header")
    if version == "1.0":
        if b"transfer-encoding" in names:
            return InvalidRequest("HTTP/1.0 has no Transfer-Encoding", param="Transfer-Encoding", code="invalid_http")
        return None
    expected = (part.strip().lower() for name, value in headers if name == b"expect" for part in value.split(b","))
    if any(part not in (b"", b"100-continue") for part in expected):
        return ExpectationFailed("this server meets no expectation but 100-continue")
    return None


def _head_too_large() -> HeadTooLarge:
    return HeadTooLarge(
        f"the request line and headers may have {limits.HEAD_BYTES_MAX} bytes and {limits.HEADERS_MAX} headers"
    )
