"""What stands before Django: a whole body within bounds, a host that is ours, one form of each path. Used by `asgi.py`.

Invariants: every wait has a deadline; no redirect of an API path; what is refused here is OpenAI's error object, and a
client's mistake is never logged as ours.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import orjson
from django.conf import settings
from django.http.request import split_domain_port, validate_host
from django.urls import get_resolver, is_valid_path

from contracts.errors import AuthFailed, InvalidRequest, MethodNotAllowed, Unavailable, UnsupportedMedia, WeirError
from gateway.clients import client_address
from gateway.edge.body import ClientGone, drain, read_bounded
from gateway.surface import limits
from gateway.surface.errors import InternalError, ReadTimeout, error_headers, error_object, status_of

log = logging.getLogger("weir.front")

ANSWER_SECONDS = 60.0
RETRY_MS = 5_000
# As Django's routes have it; every other path under /api/ ends without.
_SLASHED = {path: f"{path}/" for path in ("/api/docs", "/api/docs/inference")}
_READ_ONLY = ("/", "/favicon.ico", "/admin")  # a form sent there would be told of a missing CSRF token instead
_READING = ("GET", "HEAD", "OPTIONS")
_PAGES = ("GET", "HEAD", "POST")  # of people: what is read there, and the forms on it

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


def load_routes() -> None:
    """Imports every view and error page before the first request, which would find what is broken and answer 500."""
    resolver = get_resolver()
    assert resolver.url_patterns, "no route: not even the console's"
    for status in (400, 403, 404, 500):
        resolver.resolve_error_handler(status)


@dataclass(frozen=True, slots=True)
class Front:
    """ASGI, HTTP scope only, around `inner`."""

    inner: Application
    body_seconds: float = limits.BODY_SECONDS
    answer_seconds: float = ANSWER_SECONDS

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        try:
            body = await self._take(scope, receive)
        except ClientGone:
            return
        except WeirError as error:
            late = isinstance(error, ReadTimeout) or any(name.lower() == b"expect" for name, _ in scope["headers"])
            whole = not late and await drain(receive)
            await _answer(send, error, close=not whole, methods=_methods_of(scope["path"]))
            return
        if scope["method"] == "OPTIONS" and scope["path"] in ("*", *_READ_ONLY):
            await _tell_methods(send)
            return
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        failure: WeirError = InternalError()
        try:
            async with asyncio.timeout(self.answer_seconds):
                await self.inner(_as_read(scope, body), _Replay(body, receive), watched_send)
        except TimeoutError:
            log.warning("%s %s was not answered in time", scope["method"], scope["path"])
            failure = Unavailable("no answer within the time there is for one", retry_after_ms=RETRY_MS)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
        else:
            return
        if not started:
            await _answer(send, failure, close=True)

    async def _take(self, scope: Message, receive: Receive) -> bytes:
        """The body, where host and coding are such that it is read. Raises WeirError, ClientGone."""
        headers = {name.lower(): value for name, value in reversed(scope["headers"])}
        _check_host(headers.get(b"host", b"").decode("latin-1"))
        _check_method(scope["method"], scope["path"])
        _check_text(scope)
        _check_api(scope)
        if headers.get(b"content-encoding", b"").strip().lower() not in (b"", b"identity"):
            raise UnsupportedMedia("this path takes bodies without Content-Encoding", param="Content-Encoding")
        return await read_bounded(
            receive, headers, bytes_max=limits.MANAGEMENT_BODY_BYTES_MAX, deadline_seconds=self.body_seconds
        )


class _Replay:
    """`receive` of a request whose body is read: it comes once, whole; then what the server says."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


def _check_host(host: str) -> None:
    domain, _ = split_domain_port(host)
    if not domain or not validate_host(domain, settings.ALLOWED_HOSTS):
        raise InvalidRequest("this host is not served here", param="Host", code="invalid_host")


def _check_method(method: str, path: str) -> None:
    if path == "*" and method != "OPTIONS":
        raise InvalidRequest("only OPTIONS has no path (RFC 9112, section 3.2.4)", code="invalid_http")
    methods = _methods_of(path)
    if methods and method not in methods:
        raise MethodNotAllowed(f"this path takes {', '.join(methods)}")


def _methods_of(path: str) -> tuple[str, ...]:
    """Where the path itself tells; of the API each route does."""
    if path in _READ_ONLY:
        return _READING
    return _PAGES if path.startswith("/admin/") else ()


def _check_text(scope: Message) -> None:
    """PostgreSQL stores no NUL, and the console filters by what a URL says. The API names the parameter itself."""
    if "\x00" in scope["path"]:
        raise InvalidRequest("a URL holds no NUL", param="path")
    if b"%00" in scope["query_string"] and not scope["path"].startswith("/api/v1/"):
        raise InvalidRequest("a URL holds no NUL", param="query")


def _check_api(scope: Message) -> None:
    """What /v1 asks of its requests too. Django would join two Authorization headers into one that nobody sent."""
    if not scope["path"].startswith("/api/"):
        return
    if len(scope["query_string"]) > limits.QUERY_BYTES_MAX:
        raise InvalidRequest(
            f"the query string has more than {limits.QUERY_BYTES_MAX} bytes", param="query", code="query_too_long"
        )
    if sum(name.lower() == b"authorization" for name, _ in scope["headers"]) > 1:
        raise AuthFailed("the Authorization header must be one `Bearer weir_…`")


def _as_read(scope: Message, body: bytes) -> Message:
    """As Django gets it: in one form, from its client, and with the length of a body that came in chunks."""
    scope = _from_client(_one_form(scope))
    if any(name.lower() == b"content-length" for name, _ in scope["headers"]):
        return scope
    return {**scope, "headers": [*scope["headers"], (b"content-length", b"%d" % len(body))]}


def _one_form(scope: Message) -> Message:
    """An API path with or without its last slash is the same path; one that is not served stays as it was asked for."""
    path: str = scope["path"]
    if not path.startswith("/api/"):
        return scope
    bare = path.rstrip("/")
    wanted = _SLASHED.get(bare, bare)
    if wanted == path or not is_valid_path(wanted):
        return scope
    return {**scope, "path": wanted, "raw_path": wanted.encode()}


def _from_client(scope: Message) -> Message:
    """With the client's own address behind proxies of ours: what the audit trail and a key's networks go by."""
    if not settings.ENV.proxies:
        return scope
    port = (scope.get("client") or ("", 0))[1]
    return {**scope, "client": (client_address(scope, trusted=settings.ENV.proxies), port)}


async def _tell_methods(send: Send) -> None:
    """What the paths that are only read take; of the server as a whole, that it answers."""
    await send({"type": "http.response.start", "status": 204, "headers": [(b"allow", ", ".join(_READING).encode())]})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _answer(send: Send, error: WeirError, *, close: bool, methods: tuple[str, ...] = ()) -> None:
    body = orjson.dumps(error_object(error))
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        *error_headers(error),
        *([(b"allow", ", ".join(methods).encode())] if isinstance(error, MethodNotAllowed) else []),
        *([(b"connection", b"close")] if close else []),
    ]
    await send({"type": "http.response.start", "status": status_of(error), "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
