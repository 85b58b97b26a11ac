"""/v1/realtime: text responses over one WebSocket, in the manner of OpenAI's Realtime API. Step 7; a Channels consumer.

It is not: audio, video, voice activity, tools, server-side function calls or a stored session; a lost connection
cancels what it asked for. Frames ride the mailbox and the log as for SSE; the Channels layer carries none of them.

A wrong event is answered by an `error` event and changes nothing; the connection is closed for what cannot be read on.
Close codes: 4400 binary message or bad URL, 4401 auth, 4403 origin, scope or the URL's model, 4408 no key in time or
idle too long, 4413 message too big (1009 when far too big, or in too many pieces), 4429 too many responses at once
again and again, 4500 our mistake; 1007 no UTF-8, 1012 restart.
Invariants: accepted before it is closed, so that the code gets through; a key is in no event, close reason or log.
"""

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl

from channels.exceptions import StopConsumer
from channels.generic.websocket import AsyncWebsocketConsumer

from contracts.errors import AuthFailed, InvalidRequest, NotFound, PermissionDenied, WeirError
from gateway.admission import Admission, Caller
from gateway.clients import client_address
from gateway.realtime.conversation import Conversation
from gateway.realtime.events import EVENT_ID_MAX, Events, Farewell
from gateway.realtime.places import placed
from gateway.realtime.responses import Responses
from gateway.services import GatewayServices
from gateway.stream.relay import ClientLost
from gateway.surface import limits
from gateway.surface.errors import InternalError, rate_limits
from gateway.surface.fields import listed, text, unknown_field, wrong
from gateway.surface.json_text import parse_object
from stores.system import mint_nonce

log = logging.getLogger("weir.gateway.realtime")

# What a client may say, and the one field that says it.
_EVENTS = {
    "session.update": "session",
    "conversation.item.create": "item",
    "response.create": "response",
    "response.cancel": "response_id",
}
_SAID_BY_ANY = ("type", "event_id")
_check_event_id = text(EVENT_ID_MAX)
_SUBPROTOCOL = "realtime"  # as OpenAI's clients offer it
_SECRET_PARAMETERS = frozenset({"token", "key", "api_key", "authorization", "access_token"})


class RealtimeConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    """One connection. `services` comes by `as_asgi(services=…)`."""

    channel_layer_alias = "none"  # no layer: nothing here is broadcast

    def __init__(self, *, services: GatewayServices) -> None:
        super().__init__()
        self._services = services
        self._admission = Admission(services)
        self._conversation = Conversation()
        self._caller: Caller | None = None
        self._connection = mint_nonce()
        self._heard_at = services.clock.monotonic()  # when the client last said something
        self._events = Events(
            send=lambda text: self.send(text_data=text),
            connection=self._connection,
            stall_seconds=services.settings.send_stall_seconds,
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Responses run beside the reader and end with the connection."""
        async with asyncio.TaskGroup() as tasks:
            self._responses = Responses(
                services=self._services,
                admission=self._admission,
                conversation=self._conversation,
                events=self._events,
                tasks=tasks,
                guarded=self._guarded,
            )
            clock = tasks.create_task(self._close_when_silent())
            try:
                await super().__call__(scope, receive, send)
            finally:
                self._events.closed = True
                clock.cancel()
                await self._responses.stop_all()

    async def websocket_connect(self, message: Any) -> None:
        try:
            # A browser that offered subprotocols ends a connection that chooses none of them.
            await self.accept(subprotocol=_SUBPROTOCOL if _SUBPROTOCOL in self.scope.get("subprotocols", ()) else None)
        except OSError:  # it left during the handshake
            self._events.closed = True
            return
        await self._guarded(self._welcome())

    async def websocket_receive(self, message: Any) -> None:
        if not self._events.closed:
            self._heard_at = self._services.clock.monotonic()
            await self._guarded(self._event(message.get("text")))

    async def websocket_disconnect(self, message: Any) -> None:
        raise StopConsumer

    async def _guarded(self, step: Awaitable[None], *, event_id: Any = None) -> None:
        """One step; its failure is an event, and a close where the contract says so. `event_id`: of what caused it."""
        try:
            await step
        except Farewell as bye:
            await self._bye(bye.code, bye.reason)
        except ClientLost:
            self._events.closed = True
        except AuthFailed as error:
            await self._events.error(error, event_id=event_id)
            await self._bye(4401, "the API key was not accepted")
        except WeirError as error:
            await self._events.error(error, event_id=event_id)
            if self._caller is None and isinstance(error, PermissionDenied):
                await self._bye(4403, "this API key may not use inference")
        except Exception:
            log.exception("connection %s failed", self._connection)
            await self._events.error(InternalError(), event_id=event_id)
            await self._bye(4500, "internal error")

    async def _welcome(self) -> None:
        await self._read_query()
        headers = [(name.lower(), value) for name, value in self.scope["headers"]]
        origins = [value.decode("latin-1") for name, value in headers if name == b"origin"]
        allowed = self._services.settings.origins
        if origins and "*" not in allowed and origins[0] not in allowed:
            raise Farewell(4403, "this origin is not allowed")
        keys = [value.decode("latin-1") for name, value in headers if name == b"authorization"]
        if keys:
            scheme, _, key = keys[0].partition(" ")
            if len(keys) > 1 or scheme.lower() != "bearer":
                raise AuthFailed("the Authorization header must be one `Bearer weir_…`")
            await self._identify(key.strip())

    async def _read_query(self) -> None:
        """`?model=` is the session's model; nothing else belongs here, a key least of all."""
        query = self.scope.get("query_string", b"").decode("latin-1")[: limits.QUERY_BYTES_MAX]
        for name, value in parse_qsl(query, keep_blank_values=True):
            if name.lower() in _SECRET_PARAMETERS:
                raise Farewell(4400, "a key does not belong in a URL")
            try:
                if name != "model":
                    raise InvalidRequest(f"{name[:64]}: is not a parameter", param=name[:64], code="unknown_parameter")
                self._conversation.update({"model": value})
            except InvalidRequest as error:
                error.message = error.message.removeprefix("session.")
                error.param = name[:64]
                await self._events.error(error)
                raise Farewell(4400, "the URL's query is wrong") from error

    async def _identify(self, key: str) -> None:
        if not key or len(key) > limits.HEADER_BEARER_MAX:
            raise AuthFailed("the API key is not one of ours")
        address = client_address(self.scope, trusted=self._services.settings.trusted_proxies)
        caller = await self._admission.identify(key, address=address)
        await self._require_first_model(caller)
        self._caller = caller
        session = {"id": f"sess_{self._connection}", "object": "realtime.session", "modalities": ["text"]}
        model = str(self._conversation.defaults.get("model", ""))
        requests, tokens = await self._admission.room(self._caller.context, model=model)
        rates = rate_limits(requests=requests, tokens=tokens)
        await self._events.emit("session.created", session=session | self._conversation.defaults, rate_limits=rates)

    async def _require_first_model(self, caller: Caller) -> None:
        """The URL's model is one that this key may use: no session for another, as HTTP has no answer for it."""
        model = self._conversation.defaults.get("model")
        if model is None:
            return
        try:
            await self._admission.require_model(caller.context, model)
        except (NotFound, PermissionDenied) as error:
            await self._events.error(error)
            raise Farewell(4403, "this model is not there for this API key") from error

    async def _update(self, session: Any, caller: Caller) -> dict[str, Any]:
        """`session.update`: all of it or nothing. Raises WeirError."""
        wanted = self._conversation.updated(session)
        if wanted.get("model") != self._conversation.defaults.get("model"):
            with placed("session"):
                await self._admission.require_model(caller.context, wanted["model"])
        self._conversation.defaults = wanted
        return wanted

    async def _close_when_silent(self) -> None:
        """The deadlines of a client that says nothing: for its key, and between two events while nothing runs."""
        settings, clock = self._services.settings, self._services.clock
        await asyncio.sleep(settings.realtime_auth_seconds)
        if self._caller is None:
            await self._bye(4408, "no API key came in time")
        while not self._events.closed:
            if self._responses:
                self._heard_at = clock.monotonic()
            left = self._heard_at + settings.realtime_idle_seconds - clock.monotonic()
            if left <= 0:
                await self._bye(4408, "the connection was idle too long")
                return
            await asyncio.sleep(left)

    async def _event(self, raw: str | None) -> None:
        if raw is None:
            raise Farewell(4400, "events are text messages")
        if len(raw) > limits.REALTIME_FRAME_BYTES_MAX or len(raw.encode()) > limits.REALTIME_FRAME_BYTES_MAX:
            raise Farewell(4413, "the message is too big")
        if self._caller is None:
            await self._authenticate(raw)
        else:
            event = parse_object(raw.encode())
            await self._guarded(self._act(event, self._caller), event_id=event.get("event_id"))

    async def _authenticate(self, raw: str) -> None:
        """A stranger's first message: its key or nothing."""
        with suppress(InvalidRequest):
            event = parse_object(raw.encode())
            if event.get("type") == "session.authenticate" and isinstance(event.get("api_key"), str):
                await self._identify(event["api_key"])
                return
        message = "the first event must be session.authenticate with api_key"
        raise AuthFailed(message, param="api_key", code="missing_api_key")

    async def _act(self, event: dict[str, Any], caller: Caller) -> None:
        """One event of a known client. Raises WeirError for one that is wrong: nothing has changed then."""
        kind = event.get("type")
        if not isinstance(kind, str) or kind not in _EVENTS:
            raise wrong("type", f"must be {listed(*_EVENTS)}", code="unknown_event")
        for name in event:
            if name not in (*_SAID_BY_ANY, _EVENTS[kind]):
                raise unknown_field(name, message=f"is not a field of {kind}")
        if event.get("event_id") is not None:
            _check_event_id(event["event_id"], "event_id")
        if kind == "session.update":
            await self._events.emit("session.updated", session=await self._update(event.get("session"), caller))
        elif kind == "conversation.item.create":
            item = self._conversation.add(event.get("item"))
            named = event["item"].get("id")
            shown = {"type": "message", **item} | ({} if named is None else {"id": named})
            await self._events.emit("conversation.item.created", item=shown)
        elif kind == "response.create":
            asked, names = self._conversation.ask(event.get("response"))
            self._responses.create(asked, caller, names=names, event_id=event.get("event_id"))
        else:
            self._responses.cancel(event.get("response_id"))

    async def _bye(self, code: int, reason: str) -> None:
        if not self._events.closed:
            self._events.closed = True
            with suppress(OSError, RuntimeError):  # it closed first
                await self.close(code=code, reason=reason)
