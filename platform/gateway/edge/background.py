"""Requests with `"background": true`: accepted with 202, read by their id for a day past their end. Steps 1 and 7.

Called by `inference.py` and `requests.py`. Invariants: 202 is said once the request is in PostgreSQL and in its queue,
so whatever is lost after it, it ends; nothing that its client does with its connection touches it; of another tenant's
request nothing is known here, as everywhere.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Any

from redis.exceptions import RedisError

from contracts.errors import InvalidRequest, Unavailable, Unprocessable
from contracts.jobs import Ticket
from contracts.outcomes import JobState, Outcome
from fairqueue.messages import CancelReply, Final
from fairqueue.queue import FairQueue
from gateway.admission import Admission, Admitted, Caller
from gateway.edge.answers import ending
from gateway.edge.documents import ending_fields, request_document
from gateway.edge.exchange import Exchange
from gateway.kept import Kept, KeptAnswer, KeptRequests, KeptState, ended_without
from gateway.services import GatewayServices
from gateway.stream import assemble, sse
from gateway.surface import limits
from gateway.surface.errors import Gone, error_object, failure_of, rate_headers
from gateway.surface.schema import Asked
from tenants.limits.holds import Idempotency

log = logging.getLogger("weir.gateway.background")

CANCEL_SECONDS = 2.0
LOG_SECONDS = 5.0
LOG_PAGE_FRAMES = 512
LOST = "its answer was lost with the store that held it; it is billed for what it released"
WAITS = "this request waits to be brought back into its queue"


async def start(
    exchange: Exchange,
    caller: Caller,
    asked: Asked,
    *,
    services: GatewayServices,
    admission: Admission,
    idempotency: Idempotency | None,
    received_at: float,
) -> None:
    """Steps 3-5, then 202 with the request as `GET /v1/requests/{id}` has it. Raises WeirError: then it is refused."""
    kept = _required(services)
    if idempotency is not None:
        known = await kept.find_key(tenant_id=caller.context.tenant_id, key_digest=idempotency.key_digest)
        if known is not None:
            await _tell_again(exchange, known, services=services, body_digest=idempotency.body_digest)
            return
    admitted = await admission.admit(
        caller, asked, request_id=exchange.request_id, idempotency=idempotency, received_at=received_at
    )
    services.mailbox.close(admitted.inbox)
    request_id = exchange.request_id = admitted.ticket.request_id
    try:
        await kept.mark_queued(admitted.ticket)
    except Unavailable:
        if idempotency is None:  # else the client's retry finds it and tells of it
            await _give_up(admitted)
        raise
    headers = [_place(request_id), *rate_headers(requests=admitted.requests, tokens=admitted.tokens)]
    await exchange.json(202, await _accepted(admitted), headers=headers)


def _required(services: GatewayServices) -> KeptRequests:
    if services.kept is None:
        raise InvalidRequest("background: not available here", param="background", code="unsupported_value")
    return services.kept


async def _tell_again(exchange: Exchange, known: Kept, *, services: GatewayServices, body_digest: str) -> None:
    if known.body_digest != body_digest:
        raise Unprocessable(
            "this Idempotency-Key was used with another body", param="Idempotency-Key", code="idempotency_mismatch"
        )
    request_id = exchange.request_id = known.ticket.request_id
    await exchange.json(202, _of_kept(known), headers=[_place(request_id)])


def _place(request_id: str) -> tuple[bytes, bytes]:
    return b"location", b"/v1/requests/" + request_id.encode("ascii")


async def _give_up(admitted: Admitted) -> None:
    """It is in the queue and cannot be promised: its client is refused, so it shall not run."""
    with suppress(RedisError, OSError, TimeoutError):
        async with asyncio.timeout(CANCEL_SECONDS):
            request_id = admitted.ticket.request_id
            await admitted.queue.cancel(request_id=request_id, generation=None, reason="cancelled")


async def show_kept(services: GatewayServices, caller: Caller, request_id: str) -> dict[str, Any] | None:
    """A background request that no pool knows any more. None: it is not kept either. Raises Unavailable."""
    kept = await _find(services, caller, request_id)
    return None if kept is None else _of_kept(kept)


async def result(services: GatewayServices, queue: FairQueue, ticket: Ticket, final: Final | None) -> dict[str, Any]:
    """What `GET` says of a background request beyond any other, while its pool knows it."""
    if final is None:
        return _answer_of(ticket, None, ended_at_ms=None)
    frames = await read_frames(queue, request_id=ticket.request_id)
    if not frames and services.kept is not None:  # the log's time is over; a failure may have released nothing
        kept = await services.kept.find(tenant_id=ticket.tenant_id, request_id=ticket.request_id)
        if kept is not None and kept.answer is not None:
            return _answer_of(ticket, kept.answer, ended_at_ms=kept.ended_at_ms)
    return _answer_of(ticket, KeptAnswer(epoch="", final=final, frames=frames), ended_at_ms=None)


async def read_frames(queue: FairQueue, *, request_id: str) -> list[bytes]:
    """All that a request released, from its log. Raises RedisError, TimeoutError."""
    frames: list[bytes] = []
    while True:
        async with asyncio.timeout(LOG_SECONDS):
            piece = await queue.read_log(request_id=request_id, after_seq=len(frames), limit=LOG_PAGE_FRAMES)
        frames += piece.frames if piece is not None else []
        if piece is None or len(piece.frames) < LOG_PAGE_FRAMES:
            return frames


async def cancel_kept(services: GatewayServices, caller: Caller, request_id: str) -> dict[str, Any] | None:
    """A background request that no pool knows: it ends here, and its tombstone keeps it out of the queue for ever."""
    kept = await _find(services, caller, request_id)
    if kept is None or services.kept is None:
        return None
    if kept.answer is None:
        queue = services.queue_of(kept.ticket.pool)
        async with asyncio.timeout(CANCEL_SECONDS):
            reply = await queue.cancel(request_id=request_id, generation=None, reason="cancelled")
        if reply is not CancelReply.TOMBSTONED:  # it was brought back meanwhile
            return {"result": reply.value}
        answer = ended_without(
            kept.ticket,
            outcome=Outcome.CANCELLED,
            code="request_cancelled",
            status=499,
            message="The request was cancelled.",
        )
        if await services.kept.end(kept.ticket, answer):
            return {"result": reply.value}
        kept = await _find(services, caller, request_id)
    final = kept.answer.final if kept is not None and kept.answer is not None else None
    ended = {"outcome": final.outcome.value, "error_code": final.error_code or None} if final else {}
    return {"result": CancelReply.ALREADY_ENDED.value} | ended


async def replay(
    exchange: Exchange, services: GatewayServices, caller: Caller, request_id: str, *, epoch: str, after_seq: int
) -> bool:
    """The events of a background request whose log is gone, from `after_seq` on. False: they are not kept here.

    Raises Unavailable while it waits to be brought back, Gone for events that it never had.
    """
    kept = await _find(services, caller, request_id)
    if kept is None:
        return False
    if kept.answer is None:
        raise Unavailable(WAITS, retry_after_ms=5_000)
    answer, frames = kept.answer, kept.answer.frames
    if frames is None:
        return False
    last_seq = sse.last_seq_of(epoch, current=answer.epoch, last_seq=len(frames), writers=answer.writers)
    if last_seq is None or after_seq > last_seq:
        raise Gone(f"this request has no such event; see GET /v1/requests/{request_id}", code="events_not_kept")
    exchange.request_id = request_id
    with suppress(OSError):  # its client left: there is nothing to cancel
        await exchange.stream(headers=sse.HEADERS, between=sse.PING)
        for first in range(after_seq, len(frames), LOG_PAGE_FRAMES):
            page = frames[first : first + LOG_PAGE_FRAMES]
            await exchange.write(sse.events(epoch=answer.epoch, first_seq=first + 1, frames=page))
        await exchange.write(ending(kept.ticket, answer.final), more=False)
    return True


async def _find(services: GatewayServices, caller: Caller, request_id: str) -> Kept | None:
    """None also for one that was not told of yet."""
    if services.kept is None:
        return None
    kept = await services.kept.find(tenant_id=caller.context.tenant_id, request_id=request_id)
    return None if kept is None or kept.state is KeptState.ACCEPTED else kept


async def _accepted(admitted: Admitted) -> dict[str, Any]:
    """What is new waits; what was here before may be anywhere on its way."""
    state, request_id = JobState.QUEUED, admitted.ticket.request_id
    if admitted.attached:
        async with asyncio.timeout(LOG_SECONDS):
            status = await admitted.queue.status(request_id=request_id)
        state = JobState.SETTLED if status is None else status.state
    shown = state.value if state in (JobState.QUEUED, JobState.RUNNING) else "ended"
    document = request_document(admitted.ticket, status=shown) | {"position": admitted.position}
    return document | _answer_of(admitted.ticket, None, ended_at_ms=None)


def _of_kept(kept: Kept) -> dict[str, Any]:
    """The request object from what is kept; while it waits or runs only its pool knows more."""
    answer = kept.answer
    document = request_document(kept.ticket, status="queued" if answer is None else "ended")
    if answer is not None:
        document |= {
            "attempt": answer.final.attempt,
            "events": len(answer.frames or ()),
            "outcome": answer.final.outcome.value,
            "error_code": answer.final.error_code or None,
        } | ending_fields(answer.final)
    return document | _answer_of(kept.ticket, answer, ended_at_ms=kept.ended_at_ms)


def _answer_of(ticket: Ticket, answer: KeptAnswer | None, *, ended_at_ms: int | None) -> dict[str, Any]:
    """`response` is what the plain route would have answered, or `error` what it would have said instead."""
    response, error = None, None
    if answer is not None:
        failure = failure_of(answer.final)
        if failure is not None:
            error = error_object(failure)["error"]
        elif answer.frames is None:
            error = error_object(Gone(LOST, code="answer_lost"))["error"]
        else:
            response = assemble.answer(
                answer.frames,
                request_id=ticket.request_id,
                endpoint=ticket.endpoint,
                model=ticket.model,
                created_s=ticket.admitted_at_ms // 1000,
                final=answer.final,
            )
    until = None if ended_at_ms is None else ended_at_ms // 1000 + limits.BACKGROUND_KEPT_SECONDS
    return {"background": True, "response": response, "error": error, "kept_until": until}
