"""Step 1, EDGE: the inference API as one plain ASGI callable, mounted by `controlplane/asgi.py` at /v1 and /health.

Invariants: never a redirect (a trailing slash is the same path), never HTML, never a traceback: every refusal is
OpenAI's error object, also 404, 405, 413 and 415; what goes wrong on our side is logged under the request's id and
answered 500.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import orjson
from redis.exceptions import RedisError

from contracts.errors import AuthFailed, MethodNotAllowed, NotFound, PermissionDenied, Rejected, Unavailable, WeirError
from contracts.jobs import Endpoint
from gateway.admission import Admission
from gateway.edge.body import ClientGone
from gateway.edge.exchange import Exchange, Receive, Send
from gateway.edge.inference import infer
from gateway.edge.moderations import show_moderation
from gateway.edge.proofs import show_costs, show_receipt, show_receipt_keys
from gateway.edge.reports import list_models, show_model, show_usage
from gateway.edge.requests import bare_id, cancel_request, resume_events, show_request
from gateway.services import GatewayServices
from gateway.surface.errors import (
    Headers,
    InternalError,
    ReadTimeout,
    UpgradeRequired,
    error_headers,
    error_object,
    status_of,
)
from gateway.surface.openapi import document

log = logging.getLogger("weir.gateway.edge")

READY_SECONDS = 2.0
PREFLIGHT_SECONDS = b"600"

Route = Callable[[Exchange], Awaitable[None]]


class InferenceApp:
    """ASGI, HTTP scope only. One for each process."""

    def __init__(self, services: GatewayServices) -> None:
        self._services = services
        self._admission = Admission(services)
        self._exact: dict[str, dict[str, Route]] = {
            "/v1/chat/completions": {"POST": self._bound(infer, endpoint=Endpoint.CHAT)},
            "/v1/completions": {"POST": self._bound(infer, endpoint=Endpoint.COMPLETIONS)},
            "/v1/moderations": {"POST": self._bound(show_moderation)},
            "/v1/models": _read(self._bound(list_models)),
            "/v1/usage": _read(self._bound(show_usage)),
            "/v1/organization/usage/completions": _read(self._bound(show_usage)),
            "/v1/organization/costs": _read(self._bound(show_costs)),
            "/v1/receipt-keys": _read(self._bound(show_receipt_keys)),
            "/v1/openapi.json": _read(partial(_describe, document=orjson.Fragment(orjson.dumps(document())))),
            "/v1/realtime": {"GET": _only_websocket},
            "/health/live": _read(_live),
            "/health/ready": _read(self._ready),
        }

    def _bound(self, route: Callable[..., Awaitable[None]], **place: Any) -> Route:
        """A route with its services, and with what its path names."""
        return partial(route, services=self._services, admission=self._admission, **place)

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, clock=self._services.clock, settings=self._services.settings)
        try:
            await self._dispatch(exchange)
        except ClientGone:
            return
        except WeirError as error:
            await _refuse(exchange, error)
            await self._keep(exchange, error)
        except (RedisError, TimeoutError):
            log.exception("request %s: a store does not answer", exchange.request_id)
            retry_ms = self._services.settings.unavailable_retry_ms
            await _refuse(exchange, Unavailable("a store does not answer at the moment", retry_after_ms=retry_ms))
        except Exception:
            log.exception("request %s failed", exchange.request_id)
            await _refuse(exchange, InternalError())

    async def _keep(self, exchange: Exchange, error: WeirError) -> None:
        """So that an operator can say why, by the request's id. Of strangers only what their key was refused for."""
        if isinstance(error, AuthFailed | PermissionDenied) or (isinstance(error, Rejected) and exchange.caller):
            await self._services.refusals.note(
                error, request_id=exchange.request_id, path=exchange.path, caller=exchange.caller
            )

    async def _dispatch(self, exchange: Exchange) -> None:
        exchange.require_short_query()
        methods = self._routes(exchange.path)
        route = methods.get(exchange.method)
        if route is not None:
            await route(exchange)
        elif exchange.method == "OPTIONS":
            await _tell_methods(exchange, methods, cors=bool(self._services.settings.origins))
        else:
            raise _NotAllowed(methods)

    def _routes(self, path: str) -> dict[str, Route]:
        """Method -> route of a path. Raises NotFound."""
        exact = self._exact.get(path)
        if exact is not None:
            return exact
        if path.startswith("/v1/models/"):
            return _read(self._bound(show_model, name=path.removeprefix("/v1/models/")))
        head, _, rest = path.removeprefix("/").partition("/requests/")
        object_id, _, action = rest.partition("/")
        request_id = bare_id(object_id)
        if head == "v1" and request_id:
            routes: dict[str, dict[str, Route]] = {
                "": _read(self._bound(show_request, request_id=request_id)),
                "receipt": _read(self._bound(show_receipt, request_id=request_id)),
                "events": {"GET": self._bound(resume_events, request_id=request_id)},
                "cancel": {"POST": self._bound(cancel_request, request_id=request_id)},
            }
            if action in routes:
                return routes[action]
        raise NotFound("no such path; see the API reference for what /v1 offers")

    async def _ready(self, exchange: Exchange) -> None:
        """Whether this gateway can serve: its subscription stands and Redis answers."""
        reason = await self._not_ready()
        if reason:
            raise Unavailable(reason, retry_after_ms=1_000)
        await exchange.json(200, {"status": "ready"})

    async def _not_ready(self) -> str:
        if not self._services.mailbox.subscribed.is_set():
            return "the stream subscription is not up"
        try:
            async with asyncio.timeout(READY_SECONDS):
                await self._services.redis.ping()
        except (RedisError, OSError, TimeoutError):
            return "Redis does not answer"
        return ""


def _read(route: Route) -> dict[str, Route]:
    """A document that is read: HEAD is GET, whose body the server leaves out (RFC 9110, section 9.3.2)."""
    return {"GET": route, "HEAD": route}


def _allow(methods: Mapping[str, Route]) -> bytes:
    return ", ".join(sorted({*methods, "OPTIONS"})).encode()


class _NotAllowed(MethodNotAllowed):
    """405 with its Allow header."""

    def __init__(self, methods: Mapping[str, Route]) -> None:
        self.allow = _allow(methods)
        super().__init__(f"this path takes {self.allow.decode()}")


async def _only_websocket(exchange: Exchange) -> None:
    raise UpgradeRequired("this path is a WebSocket: connect to it with ws:// or wss://")


async def _describe(exchange: Exchange, *, document: orjson.Fragment) -> None:
    """What these routes take and answer, for client generators and the docs page; it needs no key."""
    exchange.require_query()
    await exchange.json(200, document, headers=[(b"cache-control", b"public, max-age=300")])


async def _live(exchange: Exchange) -> None:
    await exchange.json(200, {"status": "live"})


async def _tell_methods(exchange: Exchange, methods: Mapping[str, Route], *, cors: bool) -> None:
    """What a path takes; with CORS also a browser's question before a call. The origin is judged in `Exchange`."""
    headers = [(b"allow", _allow(methods))]
    if cors:
        asked = exchange.headers.get(b"access-control-request-headers", b"authorization, content-type")
        headers += [
            (b"access-control-allow-methods", ", ".join(sorted(methods)).encode()),
            (b"access-control-allow-headers", asked[:1024]),
            (b"access-control-max-age", PREFLIGHT_SECONDS),
        ]
    await exchange.empty(204, headers=headers)


async def _refuse(exchange: Exchange, error: WeirError) -> None:
    """An error answer, where none has begun."""
    if exchange.started:
        return
    headers: Headers = error_headers(error)
    if isinstance(error, _NotAllowed):
        headers.append((b"allow", error.allow))
    if isinstance(error, UpgradeRequired):
        headers.append((b"upgrade", b"websocket"))
    if isinstance(error, ReadTimeout) or not await exchange.drain():
        headers.append((b"connection", b"close"))
    try:
        await exchange.json(status_of(error), error_object(error) | exchange.beside, headers=headers)
    except (WeirError, OSError):
        log.info("request %s: nobody took its error answer", exchange.request_id)
    except Exception:
        log.exception("request %s: its error answer failed", exchange.request_id)
        if not exchange.started:
            exchange.rates = None
            await exchange.json(500, error_object(InternalError()), headers=[(b"connection", b"close")])
