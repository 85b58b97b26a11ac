"""The open responses of one connection: admitted, relayed, stopped. Step 7; made and fed by `consumer.py`.

Invariants: a response that was created ends in one `response.done`, one that was refused in one `error`; a wish to
stop is kept beside the task, which is not cancelled for it: a cancellation inside a store's call may be lost, or leave
a job behind.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, cast

import orjson

from contracts.errors import Cancelled, DeadlinePassed, InvalidRequest, Rejected, Revoked, WeirError
from contracts.outcomes import Outcome
from fairqueue.messages import Final
from gateway.admission import Admission, Admitted, Caller
from gateway.realtime.conversation import Conversation
from gateway.realtime.events import Events, Farewell
from gateway.realtime.places import move
from gateway.services import GatewayServices
from gateway.stream import assemble
from gateway.stream.answer import Answer, release
from gateway.stream.mailbox import Inbox
from gateway.stream.relay import ClientLost, Cut
from gateway.surface import limits
from gateway.surface.errors import error_object, failure_of, rate_limits
from gateway.surface.fields import wrong
from gateway.surface.schema import Asked
from stores.system import mint_request_id

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


class Responses:
    """`guarded` runs a response so that its failure is an event; `tasks` ends with the connection."""

    def __init__(
        self,
        *,
        services: GatewayServices,
        admission: Admission,
        conversation: Conversation,
        events: Events,
        tasks: asyncio.TaskGroup,
        guarded: Callable[..., Coroutine[Any, Any, None]],
    ) -> None:
        self._services = services
        self._admission = admission
        self._conversation = conversation
        self._events = events
        self._tasks = tasks
        self._guarded = guarded
        self._running: dict[str, _Running] = {}
        self._refusals = 0

    def __len__(self) -> int:
        return len(self._running)

    def create(self, asked: Asked, caller: Caller, *, names: Mapping[str, str], event_id: Any) -> None:
        """Begins one. `names` of its fields and `event_id` are the client's, for where it is refused later.

        Raises InvalidRequest over the bound on open ones, Farewell when that goes on.
        """
        if len(self._running) >= limits.REALTIME_RESPONSES_MAX:
            self._refusals += 1
            if self._refusals > limits.REALTIME_REFUSALS_MAX:
                raise Farewell(4429, "too many responses at once")
            message = f"at most {limits.REALTIME_RESPONSES_MAX} responses at once"
            raise InvalidRequest(message, param="type", code="too_many_responses")
        request_id = mint_request_id()
        running = self._running[request_id] = _Running()
        running.task = self._tasks.create_task(
            self._guarded(self._respond(caller, asked, request_id, running, names), event_id=event_id)
        )
        running.task.add_done_callback(lambda _: self._running.pop(request_id, None))

    def cancel(self, response_id: Any) -> None:
        """Stops one response, or without an id all; each `response.done` says cancelled. Raises InvalidRequest."""
        if response_id is not None and not isinstance(response_id, str):
            raise wrong("response_id", "must be a string", code="invalid_type")
        wanted = list(self._running) if response_id is None else [response_id.removeprefix("resp_")]
        if not wanted:
            raise InvalidRequest("no response runs", param="response_id", code="not_found")
        if wanted[0] not in self._running:
            raise InvalidRequest("response_id: names no running response", param="response_id", code="not_found")
        for request_id in wanted:
            self._running[request_id].stop()

    async def stop_all(self) -> None:
        """Nobody reads these responses any more. What takes too long is cancelled as a task."""
        for running in self._running.values():
            running.stop()
        tasks = [running.task for running in self._running.values() if running.task is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
            for task in late:
                task.cancel()

    async def _respond(
        self, caller: Caller, asked: Asked, request_id: str, running: _Running, names: Mapping[str, str]
    ) -> None:
        """Steps 3-7 of one response."""
        try:
            admitted = await self._admit(caller, asked, request_id)
        except Rejected as error:
            move(error, place="response", names=names)
            refusals = self._services.refusals
            await refusals.note(error, request_id=request_id, path="/v1/realtime", caller=caller.context)
            raise
        answer, response_id = _answer(admitted), f"resp_{request_id}"
        running.attach(admitted.inbox)
        texts: list[str] = []
        final: Final | None = None
        failure: WeirError | None
        try:
            held = rate_limits(requests=admitted.requests, tokens=admitted.tokens)
            opened = _opened(admitted)
            await self._events.emit("response.created", response_id=response_id, response=opened, rate_limits=held)
            final = await self._relay(answer, texts, response_id=response_id)
            failure = failure_of(final)
        except ClientLost:
            await release(answer)
            failure = Cancelled("the response was cancelled")
        except WeirError as error:
            await release(answer)
            final, failure = error.final if isinstance(error, Cut) else None, error
        except BaseException:
            await release(answer)
            raise
        finally:
            self._services.mailbox.close(admitted.inbox)
        response = _ended(response_id, admitted.ticket.request_id, "".join(texts), final=final, failure=failure)
        if failure is None:
            response["kept"] = self._conversation.answered("".join(texts))
        requests, tokens = await self._admission.room(caller.context, model=admitted.ticket.model)
        left = rate_limits(requests=requests, tokens=tokens)
        await self._events.emit("response.done", response_id=response_id, response=response, rate_limits=left)
        if isinstance(failure, Revoked):
            raise Farewell(4401, "the API key was revoked")

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

    async def _relay(self, answer: Answer, texts: list[str], *, response_id: str) -> Final:
        """Each piece of text as its event. Raises DeadlinePassed like the plain route, ClientLost, WeirError."""
        settings = self._services.settings
        relay = answer.relay()
        try:
            async with asyncio.timeout(settings.request_seconds):
                async for batch in relay.batches(beat_seconds=settings.heartbeat_seconds, from_log=False):
                    for delta in _deltas(batch.frames if batch is not None else ()):
                        texts.append(delta)
                        await self._events.emit("response.output_text.delta", response_id=response_id, delta=delta)
        except TimeoutError as error:
            message = f"the response took longer than {settings.request_seconds:g} seconds"
            raise DeadlinePassed(message) from error
        return cast("Final", relay.final)


def _answer(admitted: Admitted) -> Answer:
    return Answer(ticket=admitted.ticket, queue=admitted.queue, inbox=admitted.inbox, generation=admitted.generation)


def _deltas(frames: Any) -> list[str]:
    """The texts of frames, in order."""
    return [
        delta
        for frame in frames
        for choice in orjson.loads(frame).get("choices", ())
        if (delta := (choice.get("delta") or {}).get("content"))
    ]


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


def _ended(
    response_id: str, request_id: str, text: str, *, final: Final | None, failure: WeirError | None
) -> dict[str, Any]:
    response: dict[str, Any] = {
        "id": response_id,
        "object": "realtime.response",
        "request_id": request_id,
        "status": _status(final, failure),
        "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}],
    }
    if failure is not None:
        response["status_details"] = error_object(failure)
    if final is not None:
        response |= {"finish_reason": final.finish_reason or None, "usage": assemble.usage(final)}
        response["weir"] = assemble.extension(final)
    return response


def _status(final: Final | None, failure: WeirError | None) -> str:
    if final is not None and failure is None:
        return "incomplete" if final.finish_reason in ("length", "content_filter") else "completed"
    if isinstance(failure, Revoked):
        return "failed"
    cancelled = isinstance(failure, Cancelled) or (final is not None and final.outcome is Outcome.CANCELLED)
    return "cancelled" if cancelled else "failed"
