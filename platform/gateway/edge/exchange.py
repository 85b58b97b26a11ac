"""One HTTP request and its answer over plain ASGI. Step 1; made by `app.py`, used by every route.

Invariants: headers go out once; every answer carries `x-request-id`, `openai-processing-ms` and, where set, CORS; a
send that the client does not take within a deadline raises `SlowReader`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any
from urllib.parse import parse_qsl

import orjson

from contracts.clock import Clock
from contracts.errors import AuthFailed, InvalidRequest, SlowReader
from contracts.tenancy import TenantContext
from gateway.clients import client_address
from gateway.edge.body import drain
from gateway.services import GatewaySettings
from gateway.surface import limits
from gateway.surface.errors import Headers
from stores.system import mint_request_id

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON = (b"content-type", b"application/json")
_RATES = b", ".join(
    b"x-ratelimit-%b-%b" % (what, of) for what in (b"limit", b"remaining", b"reset") for of in (b"requests", b"tokens")
)
_AZURES_VERSION = "api-version"  # clients set up for Azure add it to every call; it means nothing here
EXPOSED = b"x-request-id, openai-processing-ms, retry-after, retry-after-ms, x-should-retry, server-timing, " + _RATES


class Exchange:
    """`headers` are lower-case names to the first value; a doubled Authorization is refused in `bearer`."""

    def __init__(
        self, scope: Mapping[str, Any], receive: Receive, send: Send, *, clock: Clock, settings: GatewaySettings
    ) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"].rstrip("/") or "/"
        self._receive = receive
        self._body_open = scope["method"] in ("POST", "PUT", "PATCH")
        self._asked_for = False  # whether the body was: a client may wait with it until it is (100 Continue)
        self.request_id: str = mint_request_id()
        self.headers: dict[bytes, bytes] = {}
        self.started = False
        self.beside: dict[str, Any] = {}  # what an error answer has beside its error: the bill of what ran
        self._raw_headers: Iterable[tuple[bytes, bytes]] = scope["headers"]
        self.address = client_address(scope, trusted=settings.trusted_proxies)
        self.caller: TenantContext | None = None  # this and `rates` are set once the caller is known
        self.model = ""  # the one that is asked for, once that is known: its own limits are told too
        self.rates: Callable[[], Awaitable[Headers]] | None = None
        self._state: MutableMapping[str, Any] = scope.get("state", {})
        self._unread: Callable[[], int] = self._state.get("unread", lambda: 0)
        self._paused: Callable[[], bool] = self._state.get("paused", lambda: True)
        self._query: bytes = scope.get("query_string", b"")
        self._send = send
        self._clock = clock
        self._settings = settings
        self._begun = clock.monotonic()
        for name, value in self._raw_headers:
            self.headers.setdefault(name.lower(), value)

    async def receive(self) -> Message:
        self._asked_for = True
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._body_open = False
        return message

    async def drain(self) -> bool:
        """Takes what is left of the body. False: it does not end, or was never asked for; the connection must close."""
        if self._body_open and not self._asked_for and b"expect" in self.headers:
            return False
        return not self._body_open or await drain(self.receive)

    def bearer(self) -> str:
        """The API key. Raises AuthFailed; the key itself is in no message."""
        values = [value for name, value in self._raw_headers if name.lower() == b"authorization"]
        if not values:
            raise AuthFailed("no API key: send `Authorization: Bearer weir_…`", code="missing_api_key")
        scheme, _, key = values[0].decode("latin-1").partition(" ")
        key = key.strip()
        if len(values) > 1 or scheme.lower() != "bearer" or not key or len(key) > limits.HEADER_BEARER_MAX:
            raise AuthFailed("the Authorization header must be one `Bearer weir_…`")
        return key

    def require_short_query(self) -> None:
        """On every route, whether it reads its query or not. Raises InvalidRequest."""
        if len(self._query) > limits.QUERY_BYTES_MAX:
            raise InvalidRequest(
                f"the query string has more than {limits.QUERY_BYTES_MAX} bytes", param="query", code="query_too_long"
            )

    def query(self) -> dict[str, list[str]]:
        """Query parameters; `name[]` is the same as `name`. Raises InvalidRequest."""
        try:
            pairs = parse_qsl(self._query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=500)
        except ValueError as error:
            raise InvalidRequest("the query string is not valid", param="query", code="invalid_query") from error
        values: dict[str, list[str]] = {}
        for name, value in pairs:
            values.setdefault(name.removesuffix("[]"), []).append(value)
        values.pop(_AZURES_VERSION, None)
        return values

    def require_query(self, known: frozenset[str] = frozenset()) -> None:
        """That the query has no parameter but these: none is dropped silently. Raises InvalidRequest naming it."""
        for name in self.query():
            if name not in known:
                shown = name[:64] or "query"
                about = "is not a parameter of this path" if name else "has a parameter without a name"
                raise InvalidRequest(f"{shown}: {about}", param=shown, code="unknown_parameter")

    async def json(self, status: int, document: Any, *, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """A whole answer."""
        body = orjson.dumps(document)
        await self._start(status, [JSON, (b"content-length", b"%d" % len(body)), *headers])
        await self.write(body, more=False)

    async def empty(self, status: int, *, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """An answer that has no body by its status (204)."""
        await self._start(status, list(headers))
        await self.write(b"", more=False)

    async def stream(self, *, headers: Iterable[tuple[bytes, bytes]], between: bytes = b"") -> None:
        """Begins an answer with status 200 that is written piece by piece.

        `between`: what the connection may put between two pieces to see whether the client is there; it means nothing.
        """
        self._state["between"] = between
        await self._start(200, list(headers))

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Waits while the client takes what was sent before, however slowly. Raises SlowReader once it takes nothing.

        A server waits before it writes, so that a send which was given up in time has written nothing. Where it would
        not wait nothing is timed: to ask the kernel and set a timer was a third of what a stream's write costs.
        """
        message = {"type": "http.response.body", "body": data, "more_body": more}
        if not self._paused():
            await self._send(message)
            return
        unread = self._unread()
        while True:
            try:
                async with asyncio.timeout(self._settings.send_stall_seconds):
                    await self._send(message)
            except TimeoutError as error:
                left = self._unread()
                if left >= unread:
                    raise SlowReader("the client does not read its answer") from error
                unread = left
            else:
                return

    async def _start(self, status: int, headers: Headers) -> None:
        elapsed_ms = int((self._clock.monotonic() - self._begun) * 1000)
        if self.rates is not None and not any(name.startswith(b"x-ratelimit-") for name, _ in headers):
            headers = [*headers, *await self.rates()]
        shared = [
            (b"x-request-id", self.request_id.encode("ascii")),
            (b"openai-processing-ms", b"%d" % elapsed_ms),
            *self._cors(),
        ]
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *shared]})

    def _cors(self) -> Headers:
        origin = self.headers.get(b"origin")
        allowed = self._settings.origins
        if origin is None or not allowed:
            return []
        if "*" in allowed:
            return [(b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", EXPOSED)]
        if origin.decode("latin-1") not in allowed:
            return [(b"vary", b"Origin")]
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", EXPOSED),
            (b"vary", b"Origin"),
        ]
