"""/v1/realtime: text responses over one WebSocket, in the manner of OpenAI's Realtime API. Step 7; a Channels consumer.

It is not: audio, video, voice activity, tools, server-side function calls or a stored session; a lost connection
cancels what it asked for. Frames ride the mailbox and the log as for SSE; the Channels layer carries none of them.

Close codes: 4400 bad event, 4401 auth, 4403 origin, 4408 no key in time, 4413 message too big, 4429 too many responses
at once again and again, 4500 our mistake; 1012 restart. Invariants: accepted before it is closed, so that the code gets
through; every event has `event_id` and a `sequence_number` without gaps; a key is in no event, close reason or log; a
response that was created ends in one `response.done`, one that was refused in one `error`; a wish to stop is kept
beside the task, which is not cancelled for it: a cancellation inside a store's call may be lost, or leave a job behind.
"""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import orjson
from channels.exceptions import StopConsumer
from channels.generic.websocket import AsyncWebsocketConsumer

from contracts.errors import AuthFailed, Cancelled, InvalidRequest, PermissionDenied, SlowReader, WeirError
from contracts.outcomes import Outcome
from fairqueue.messages import Final
from gateway.admission import Admission, Admitted, Caller
from gateway.clients import client_address
from gateway.realtime.conversation import Conversation
from gateway.services import GatewayServices
from gateway.stream import assemble
from gateway.stream.answer import Answer, release
from gateway.stream.mailbox import Inbox
from gateway.stream.relay import ClientLost
from gateway.surface import limits
from gateway.surface.errors import InternalError, error_object, failure_of
from gateway.surface.json_text import parse_object
from gateway.surface.schema import Asked
from stores.system import mint_nonce, mint_request_id

log = logging.getLogger("weir.gateway.realtime")

_SECRET_PARAMETERS = (b"token=", b"key=", b"api_key=", b"authorization=", b"access_token=")
_REFUSALS_MAX = 16  # over the bound on open responses, before the connection is closed
_CLOSE_SECONDS = 10.0  # for the responses of a connection that has ended to be admitted and cancelled
_LAST_SECONDS = 2.0  # for an admission whose task is cancelled nevertheless


@dataclass(slots=True)
class _Running:
    """One response under way, and whether somebody wants it to stop."""

    stopped: bool = False
    inbox: Inbox | None = None
    task: asyncio.Task[None] | None = None

    def attach(self, inbox: Inbox) -> None:
        """It is admitted: a wish from before is heard first of all."""
        self.inbox = inbox
        if self.stopped:
            inbox.interrupt()

    def stop(self) -> None:
        """Heard at once, or as soon as it is admitted. Repeating it is harmless."""
        if not self.stopped and self.inbox is not None:
            self.inbox.interrupt()
        self.stopped = True


class _Bye(Exception):
    """The end of a connection, with its close code."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


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
        self._sequence = 0
        self._refusals = 0
        self._closed = False
        self._running: dict[str, _Running] = {}
        self._sending = asyncio.Lock()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Responses run beside the reader and end with the connection."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            clock = tasks.create_task(self._close_unless_known())
            try:
                await super().__call__(scope, receive, send)
            finally:
                self._closed = True
                clock.cancel()
                await self._stop_all()

    async def _stop_all(self) -> None:
        """Nobody reads these responses any more. What takes too long is cancelled as a task."""
        for running in self._running.values():
            running.stop()
        tasks = [running.task for running in self._running.values() if running.task is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
            for task in late:
                task.cancel()

    async def websocket_connect(self, message: Any) -> None:
        try:
            await self.accept()
        except OSError:  # it left during the handshake
            self._closed = True
            return
        await self._guarded(self._welcome())

    async def websocket_receive(self, message: Any) -> None:
        if not self._closed:
            await self._guarded(self._event(message.get("text")))

    async def websocket_disconnect(self, message: Any) -> None:
        raise StopConsumer

    async def _guarded(self, step: Any) -> None:
        """One step; its failure is an event, and a close where the contract says so."""
        try:
            await step
        except _Bye as bye:
            await self._bye(bye.code, bye.reason)
        except ClientLost:
            self._closed = True
        except AuthFailed as error:
            await self._error(error)
            await self._bye(4401, "the API key was not accepted")
        except WeirError as error:
            await self._error(error)
            if self._caller is None and isinstance(error, PermissionDenied):
                await self._bye(4403, "this API key may not use inference")
        except Exception:
            log.exception("connection %s failed", self._connection)
            await self._error(InternalError())
            await self._bye(4500, "internal error")

    async def _welcome(self) -> None:
        query = self.scope.get("query_string", b"").lower()
        if any(name in query for name in _SECRET_PARAMETERS):
            raise _Bye(4400, "a key does not belong in a URL")
        headers = [(name.lower(), value) for name, value in self.scope["headers"]]
        origins = [value.decode("latin-1") for name, value in headers if name == b"origin"]
        allowed = self._services.settings.realtime_origins
        if origins and "*" not in allowed and origins[0] not in allowed:
            raise _Bye(4403, "this origin is not allowed")
        keys = [value.decode("latin-1") for name, value in headers if name == b"authorization"]
        if keys:
            scheme, _, key = keys[0].partition(" ")
            if len(keys) > 1 or scheme.lower() != "bearer":
                raise AuthFailed("the Authorization header must be one `Bearer weir_…`")
            await self._identify(key.strip())

    async def _identify(self, key: str) -> None:
        if not key or len(key) > limits.HEADER_BEARER_MAX:
            raise AuthFailed("the API key is not one of ours")
        address = client_address(self.scope, trusted=self._services.settings.trusted_proxies)
        self._caller = await self._admission.identify(key, address=address)
        session = {"id": f"sess_{self._connection}", "object": "realtime.session", "modalities": ["text"]}
        await self._emit("session.created", session=session)

    async def _close_unless_known(self) -> None:
        await asyncio.sleep(self._services.settings.realtime_auth_seconds)
        if self._caller is None:
            await self._bye(4408, "no API key came in time")

    async def _event(self, raw: str | None) -> None:
        if raw is None:
            raise _Bye(4400, "events are text messages")
        if len(raw) > limits.REALTIME_FRAME_BYTES_MAX or len(raw.encode()) > limits.REALTIME_FRAME_BYTES_MAX:
            raise _Bye(4413, "the message is too big")
        try:
            event = parse_object(raw.encode())
        except InvalidRequest as error:
            await self._error(error)
            raise _Bye(4400, "the event is not a JSON object") from error
        kind = event.get("type")
        if self._caller is None:
            if kind != "session.authenticate" or not isinstance(event.get("api_key"), str):
                raise AuthFailed("the first event must be session.authenticate with api_key", code="missing_api_key")
            await self._identify(event["api_key"])
        elif kind == "session.update":
            await self._emit("session.updated", session=self._conversation.update(event.get("session")))
        elif kind == "conversation.item.create":
            item = self._conversation.add(event.get("item"))
            await self._emit("conversation.item.created", item={"type": "message", **item})
        elif kind == "response.create":
            await self._create(event.get("response"), self._caller)
        elif kind == "response.cancel":
            await self._cancel(event.get("response_id"))
        else:
            await self._error(InvalidRequest("type: is not an event of this API", param="type", code="unknown_event"))
            raise _Bye(4400, "unknown event")

    async def _create(self, response: Any, caller: Caller) -> None:
        if len(self._running) >= limits.REALTIME_RESPONSES_MAX:
            self._refusals += 1
            if self._refusals > _REFUSALS_MAX:
                raise _Bye(4429, "too many responses at once")
            message = f"at most {limits.REALTIME_RESPONSES_MAX} responses at once"
            raise InvalidRequest(message, code="too_many_responses")
        asked = self._conversation.ask(response)
        request_id = mint_request_id()
        running = self._running[request_id] = _Running()
        running.task = self._tasks.create_task(self._guarded(self._respond(caller, asked, request_id, running)))
        running.task.add_done_callback(lambda _: self._running.pop(request_id, None))

    async def _cancel(self, response_id: Any) -> None:
        """Stops one response, or the only one. Its `response.done` says cancelled."""
        wanted = list(self._running) if response_id is None else [str(response_id).removeprefix("resp_")]
        if len(wanted) != 1 or wanted[0] not in self._running:
            raise InvalidRequest("response_id: names no running response", param="response_id", code="not_found")
        self._running[wanted[0]].stop()

    async def _respond(self, caller: Caller, asked: Asked, request_id: str, running: _Running) -> None:
        """Steps 3-7 of one response."""
        admitted = await self._admit(caller, asked, request_id)
        answer, real_id = _answer(admitted), admitted.ticket.request_id
        running.attach(admitted.inbox)
        frames: list[bytes] = []
        final: Final | None = None
        failure: WeirError | None
        try:
            await self._emit("response.created", response_id=f"resp_{request_id}", response=_opened(admitted))
            final = await self._relay(answer, frames, response_id=f"resp_{request_id}")
            failure = failure_of(final)
        except ClientLost:
            await release(answer)
            failure = Cancelled("the response was cancelled")
        except WeirError as error:
            await release(answer)
            failure = error
        except BaseException:
            await release(answer)
            raise
        finally:
            self._services.mailbox.close(admitted.inbox)
        await self._done(request_id, real_id, frames, final=final, failure=failure)

    async def _admit(self, caller: Caller, asked: Asked, request_id: str) -> Admitted:
        """Steps 3-5, to their end even when this task is cancelled: then what they queued is cancelled too."""
        admission = self._admission.admit(
            caller, asked, request_id=request_id, idempotency=None, received_at=self._services.clock.monotonic()
        )
        admitting = asyncio.ensure_future(admission)
        try:
            return await asyncio.shield(admitting)
        except asyncio.CancelledError:
            await asyncio.wait((admitting,), timeout=_LAST_SECONDS)
            if not admitting.done():
                admitting.cancel()
            elif not admitting.cancelled() and admitting.exception() is None:
                self._services.mailbox.close(admitting.result().inbox)
                await release(_answer(admitting.result()))
            raise

    async def _relay(self, answer: Answer, frames: list[bytes], *, response_id: str) -> Final:
        settings = self._services.settings
        relay = answer.relay()
        async for batch in relay.batches(beat_seconds=settings.heartbeat_seconds, from_log=False):
            for frame in batch.frames if batch is not None else ():
                frames.append(frame)
                for choice in orjson.loads(frame).get("choices", ()):
                    delta = (choice.get("delta") or {}).get("content")
                    if delta:
                        await self._emit("response.output_text.delta", response_id=response_id, delta=delta)
        return cast("Final", relay.final)

    async def _done(
        self, request_id: str, real_id: str, frames: list[bytes], *, final: Final | None, failure: WeirError | None
    ) -> None:
        text = "".join(_contents(frames))
        response: dict[str, Any] = {
            "id": f"resp_{request_id}",
            "object": "realtime.response",
            "request_id": real_id,
            "status": _status(final, failure),
            "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}],
        }
        if failure is not None:
            response["status_details"] = error_object(failure)
        else:
            self._conversation.answered(text)
        if final is not None:
            response |= {"finish_reason": final.finish_reason or None, "usage": assemble.usage(final)}
            response["weir"] = assemble.extension(final)
        await self._emit("response.done", response_id=f"resp_{request_id}", response=response)

    async def _error(self, error: WeirError) -> None:
        with suppress(ClientLost):
            await self._emit("error", **error_object(error))

    async def _emit(self, kind: str, **fields: Any) -> None:
        """One event. A client that does not take it is closed."""
        async with self._sending:
            if self._closed:
                return
            self._sequence += 1
            event: dict[str, Any] = {"type": kind, "event_id": f"event_{self._connection}_{self._sequence}"}
            event |= {"sequence_number": self._sequence, **fields}
            try:
                async with asyncio.timeout(self._services.settings.send_stall_seconds):
                    await self.send(text_data=orjson.dumps(event).decode())
            except TimeoutError as error:
                self._closed = True
                raise SlowReader("the client does not read its events") from error
            except (OSError, RuntimeError) as error:  # RuntimeError: how ASGI servers refuse to send after a close
                if isinstance(error, RuntimeError) and not self._closed:
                    raise
                self._closed = True
                raise ClientLost from error

    async def _bye(self, code: int, reason: str) -> None:
        if not self._closed:
            self._closed = True
            with suppress(OSError):  # it closed first
                await self.close(code=code, reason=reason)


def _answer(admitted: Admitted) -> Answer:
    return Answer(ticket=admitted.ticket, queue=admitted.queue, inbox=admitted.inbox, generation=admitted.generation)


def _opened(admitted: Admitted) -> dict[str, Any]:
    ticket = admitted.ticket
    return {
        "id": f"resp_{ticket.request_id}",
        "object": "realtime.response",
        "request_id": ticket.request_id,
        "status": "in_progress",
        "model": ticket.model,
        "position": admitted.position,
    }


def _status(final: Final | None, failure: WeirError | None) -> str:
    if final is not None and failure is None:
        return "incomplete" if final.finish_reason in ("length", "content_filter") else "completed"
    cancelled = isinstance(failure, Cancelled) or (final is not None and final.outcome is Outcome.CANCELLED)
    return "cancelled" if cancelled else "failed"


def _contents(frames: list[bytes]) -> list[str]:
    return [
        delta
        for frame in frames
        for choice in orjson.loads(frame).get("choices", ())
        if (delta := (choice.get("delta") or {}).get("content"))
    ]
