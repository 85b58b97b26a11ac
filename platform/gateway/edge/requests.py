"""GET /v1/requests/{id}, its events, and its cancel. Steps 1 and 7; called by `app.py`.

Invariant: another tenant's request and one that never was answer alike (404), on every route.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError

from billing.clickhouse.shapes import RequestRow
from contracts.errors import DeadlinePassed, InvalidRequest, NotFound, Unavailable
from contracts.outcomes import JobState
from contracts.text import shown
from fairqueue.keys import mailbox_channel
from fairqueue.messages import Final, JobStatus, LogSlice
from fairqueue.queue import FairQueue
from gateway.admission import Admission, Caller
from gateway.edge import background
from gateway.edge.answers import send_stream
from gateway.edge.callers import identified
from gateway.edge.documents import ending_fields, request_document
from gateway.edge.exchange import Exchange
from gateway.refusals import Refusal
from gateway.services import GatewayServices
from gateway.stream import sse
from gateway.stream.answer import Answer
from gateway.surface import limits
from gateway.surface.errors import Gone
from gateway.surface.verdicts import shown_verdicts

log = logging.getLogger("weir.gateway.requests")

STORE_SECONDS = 5.0
POOLS_LOOKED_AT_MAX = 256
OBJECT_PREFIXES = ("chatcmpl-", "cmpl-", "resp_")  # how answers name their requests
_OUR_OWN = {"GUARDRAIL": "", "WORKER": ""}  # details that name the operator's rules and machines
LIVE = frozenset({JobState.QUEUED, JobState.RUNNING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A request that a pool still knows."""

    queue: FairQueue
    status: JobStatus


def bare_id(object_id: str) -> str:
    """The request's id in the id of its answer, its chunks or its realtime response."""
    prefix = next((prefix for prefix in OBJECT_PREFIXES if object_id.startswith(prefix)), "")
    return object_id.removeprefix(prefix)


async def show_request(exchange: Exchange, request_id: str, *, services: GatewayServices, admission: Admission) -> None:
    """Where a request stands: live from its pool, later from the metered rows; or why it was refused."""
    caller = await identified(exchange, admission)
    found = await _find(services, caller, request_id)
    if found is not None:
        async with _in_time():
            final = await _final_of(found)
            place = await found.queue.place(found.status)
            document = _live(found.status, final) | {"wait_ms": None if place is None else place.wait_ms}
            if found.status.ticket.background:
                document |= await background.result(services, found.queue, found.status.ticket, final)
        await exchange.json(200, document)
        return
    kept, away = await _kept(services, caller, request_id)
    if kept is not None:
        await exchange.json(200, kept)
        return
    past = await _past(services, caller, request_id, away=away)
    await exchange.json(200, _refused(past) if isinstance(past, Refusal) else _metered(past))


async def cancel_request(
    exchange: Exchange, request_id: str, *, services: GatewayServices, admission: Admission
) -> None:
    """Stops a request, whoever reads it. Repeating it is harmless; what was released is billed."""
    caller = await identified(exchange, admission)
    found = await _find(services, caller, request_id)
    if found is None:
        async with _in_time():
            kept = await background.cancel_kept(services, caller, request_id)
        if kept is not None:
            await exchange.json(200, {"id": request_id, "object": "request.cancel"} | kept)
            return
        past = await _past(services, caller, request_id)
        ended = {"outcome": "refused", "error_code": past.code} if isinstance(past, Refusal) else _how(past)
        await exchange.json(200, {"id": request_id, "object": "request.cancel", "result": "already_ended"} | ended)
        return
    async with _in_time():
        reply = await found.queue.cancel(request_id=request_id, generation=None, reason="cancelled")
    await exchange.json(200, {"id": request_id, "object": "request.cancel", "result": reply.value})


async def resume_events(
    exchange: Exchange, request_id: str, *, services: GatewayServices, admission: Admission
) -> None:
    """The events after `Last-Event-ID` or `?starting_after=`, then what follows live. Leaving cancels nothing."""
    caller = await identified(exchange, admission, query=frozenset({"starting_after"}))
    epoch, after_seq = _start(exchange)
    found = await _find(services, caller, request_id)
    if found is None:
        if not await background.replay(exchange, services, caller, request_id, epoch=epoch, after_seq=after_seq):
            await _past(services, caller, request_id)
            raise _events_gone(request_id)
        return
    start = await _log_start(found)
    if found.status.ticket.background and found.status.state is JobState.SETTLED and _is_dropped(found, start):
        if not await background.replay(exchange, services, caller, request_id, epoch=epoch, after_seq=after_seq):
            raise _events_gone(request_id)
        return
    inbox = services.mailbox.open(request_id)
    try:
        _check_start(found, start, epoch=epoch, after_seq=after_seq)
        if found.status.state in LIVE:
            await _listen(services, found)
        exchange.request_id = request_id
        services.running.note(inbox, found.status.ticket)
        answer = Answer(
            ticket=found.status.ticket,
            queue=found.queue,
            inbox=inbox,
            generation=None,
            from_log=True,
            after_seq=after_seq,
        )
        await send_stream(exchange, answer, settings=services.settings, held=False)
    finally:
        services.mailbox.close(inbox)


async def _find(services: GatewayServices, caller: Caller, request_id: str) -> Found | None:
    """The pool that knows a request of the caller's tenant."""
    if len(request_id) > limits.REQUEST_ID_MAX:
        raise _unknown(request_id)
    async with _in_time():
        served = await services.catalogue.list()
        for pool in sorted({model.card.pool for model in served})[:POOLS_LOOKED_AT_MAX]:
            queue = services.queue_of(pool)
            status = await queue.status(request_id=request_id)
            if status is not None:
                if status.tenant_id != caller.context.tenant_id:
                    raise _unknown(request_id)
                return Found(queue=queue, status=status)
    return None


async def _kept(
    services: GatewayServices, caller: Caller, request_id: str
) -> tuple[dict[str, Any] | None, Unavailable | None]:
    """A background request from PostgreSQL; with that away, other requests are still found elsewhere."""
    try:
        return await background.show_kept(services, caller, request_id), None
    except Unavailable as error:
        return None, error


async def _log_start(found: Found) -> LogSlice | None:
    async with _in_time():
        return await found.queue.read_log(request_id=found.status.request_id, after_seq=0, limit=1)


def _is_dropped(found: Found, start: LogSlice | None) -> bool:
    """Whether the log is over its time."""
    return start is None or (not start.frames and found.status.last_seq > 0)


async def _past(
    services: GatewayServices, caller: Caller, request_id: str, *, away: Unavailable | None = None
) -> RequestRow | Refusal:
    """A request that no pool knows any more, or that none ever knew. Raises NotFound, Unavailable."""
    mine = caller.context.tenant_id
    try:
        row = await services.usage.request(tenant_id=mine, request_id=request_id)
    except Unavailable as error:  # what was refused is known without it
        row, away = None, error
    if row is not None:
        return row
    async with _in_time():
        refusal = await services.refusals.find_own(request_id, tenant_id=mine)
    if refusal is None:
        raise away or _unknown(request_id)
    return refusal


async def _final_of(found: Found) -> Final | None:
    if found.status.state is not JobState.SETTLED:
        return None
    piece = await found.queue.read_log(request_id=found.status.request_id, after_seq=found.status.last_seq, limit=1)
    return None if piece is None else piece.final


def _start(exchange: Exchange) -> tuple[str, int]:
    """(epoch or "", last seq that the client has). Raises InvalidRequest."""
    values = exchange.query().get("starting_after", [])
    if len(values) > 1:
        raise InvalidRequest("starting_after: must be given once", param="starting_after")
    header = exchange.headers.get(b"last-event-id")
    source, param = (values[-1], "starting_after") if values else ((header or b"").decode("latin-1"), "Last-Event-ID")
    if source == "0" or not (source or values):
        return "", 0
    if source.isascii() and source.isdigit() and len(source) <= 9:
        return "", int(source)
    parsed = sse.parse_event_id(source)
    if parsed is None:
        raise InvalidRequest(f"{param}: must be the id of an event of this request", param=param)
    return parsed


def _check_start(found: Found, start: LogSlice | None, *, epoch: str, after_seq: int) -> None:
    """That the log still holds what follows, and what the client has is what it held under the epoch that is named."""
    status = found.status
    if start is None or _is_dropped(found, start):
        raise _events_gone(status.request_id)
    last_seq = sse.last_seq_of(epoch, current=start.epoch, last_seq=status.last_seq, writers=start.writers)
    if last_seq is None or after_seq > last_seq:
        raise _events_gone(status.request_id)


async def _listen(services: GatewayServices, found: Found) -> None:
    """Adds this gateway to the request's mailboxes. A deadline in the past lets nothing be queued anew."""
    try:
        async with _in_time():
            await found.queue.enqueue(
                found.status.ticket,
                mailbox=mailbox_channel(services.gateway_id),
                enqueue_deadline_ms=1,
                weight_milli=1000,
                queued_max=1,
                expires_at_ms=1,
            )
    except DeadlinePassed as error:
        raise _unknown(found.status.request_id) from error


def _live(status: JobStatus, final: Final | None) -> dict[str, Any]:
    shown = status.state.value if status.state in LIVE else "ended"
    document = request_document(status.ticket, status=shown) | {
        "position": status.position,
        "attempt": status.attempt,
        "events": status.last_seq,
        "outcome": status.outcome or None,
        "error_code": status.error_code or None,
    }
    return document if final is None else document | ending_fields(final)


def _refused(refusal: Refusal) -> dict[str, Any]:
    """It never ran, holds nothing and costs nothing: what its client was told."""
    error = {"message": refusal.message, "type": refusal.type, "param": refusal.param, "code": refusal.code}
    return {
        "id": refusal.request_id,
        "object": "request",
        "status": "refused",
        "path": refusal.path,
        "created": refusal.at_ms // 1000,
        "outcome": "refused",
        "error_code": refusal.code,
        "http_status": refusal.status,
        "error": error,
        "retry_after_ms": refusal.retry_after_ms,
        "usage": None,
    }


def _how(row: RequestRow) -> dict[str, Any]:
    return {"outcome": row.outcome, "error_code": row.error_code or None}


def _verdicts(row: RequestRow) -> list[dict[str, Any]]:
    return shown_verdicts(part for step in row.timeline if step.step == "GUARDRAIL" for part in step.detail.split("; "))


def _metered(row: RequestRow) -> dict[str, Any]:
    return {
        "id": row.request_id,
        "object": "request",
        "status": "ended",
        "model": row.model,
        "endpoint": row.endpoint,
        "stream": row.stream,
        "created": row.admitted_at_ms // 1000,
        "attempt": row.attempt,
        "finish_reason": row.finish_reason or None,
        **({"stopped_by": row.stopped_by} if row.stopped_by else {}),
        "usage": {
            "prompt_tokens": row.prompt_tokens,
            "completion_tokens": row.completion_tokens,
            "total_tokens": row.prompt_tokens + row.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": row.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": row.reasoning_tokens},
            "cost": row.cost_text,
            "currency": row.currency,
        },
        "timings": {"ttft_ms": row.ttft_ms, "itl_ms": row.itl_ms, "total_ms": row.total_ms},
        "verdicts": _verdicts(row),
        "timeline": [
            {"step": step.step, "duration_us": step.duration_us, "detail": _OUR_OWN.get(step.step, step.detail)}
            for step in row.timeline
        ],
        **_how(row),
    }


def _unknown(request_id: str) -> NotFound:
    return NotFound(f"no request {shown(request_id)}", code="request_not_found")


def _events_gone(request_id: str) -> Gone:
    message = f"no event of this request has that id, or what follows it is not kept; see GET /v1/requests/{request_id}"
    return Gone(message, code="events_not_kept")


@asynccontextmanager
async def _in_time() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(STORE_SECONDS):
            yield
    except (RedisError, OSError, TimeoutError) as error:
        log.warning("a pool's queue does not answer: %r", error)  # a script's own fault is one of these too
        raise Unavailable("the queue does not answer at the moment", retry_after_ms=1_000) from error
