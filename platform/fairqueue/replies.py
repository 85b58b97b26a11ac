"""Step 5, QUEUE: replies of the scripts as messages. Called by `queue` only. Pure.

Invariant: a reply that is not of the documented shape raises here and goes no further.
"""

from dataclasses import replace
from typing import Any

from contracts.errors import DeadlinePassed, QueueFull
from contracts.jobs import Claim, Ticket, UsageRecord
from contracts.outcomes import JobState
from contracts.tokens import TokenCounts
from contracts.wire import decode
from fairqueue import policy
from fairqueue.messages import (
    Abort,
    AbortReason,
    Enqueued,
    Final,
    JobStatus,
    LogSlice,
    QueueDepths,
    ReapReport,
    ServiceRate,
    StepReply,
    Wait,
    counts_of,
    usage_from_stream,
)
from fairqueue.policy import Fullness, RateWindow

_OPERATORS = (
    "only an operator raises it, as `queued_max` at /api/v1/tenants or /api/v1/plans of the management API, "
    "or under Tenants or Plans in the console."
)
_ROOM_AGAIN = "no setting raises it, and it has room again as requests begin to run."
_SMALLER = "no setting raises it, and a smaller request may fit."
_OF_ALL = "limit {limit} for all customers together, requested {asked}"  # what others have waiting is not told
FULL_TEXT = {
    "blocked": f"Blocked: the limit on waiting requests of the organization is 0; {_OPERATORS}",
    "tenant": "Limit on waiting requests of the organization for this model reached: "
    f"limit {{limit}}, waiting {{used}}, requested {{asked}}; {_OPERATORS}",
    "tenant_tokens": "Limit on waiting tokens of the organization for this model reached: "
    f"limit {{limit}}, waiting {{used}}, requested at most {{asked}}; {_SMALLER}",
    "tenant_bytes": "Limit on bytes of waiting requests of the organization for this model reached: "
    f"limit {{limit}}, waiting {{used}}, requested {{asked}}; {_SMALLER}",
    "pool": f"The queue of this model is full: {_OF_ALL}; {_ROOM_AGAIN}",
    "tokens": f"The queue of this model has no room for so many tokens: {_OF_ALL}; {_SMALLER}",
    "bytes": f"The queue of this model has no room for so many bytes: {_OF_ALL}; {_SMALLER}",
}


def full_text(bound: str, *, limit: int, used: int, asked: int) -> str:
    """What a bound of the queue that is reached says."""
    return FULL_TEXT[bound].format(limit=limit, used=used, asked=asked)


def enqueued(reply: list[Any]) -> Enqueued:
    """Raises QueueFull, DeadlinePassed."""
    kind = reply[0].decode()
    if kind == "ok":
        return Enqueued(position=reply[1], generation=reply[2], already=bool(reply[3]))
    if kind == "full":
        bound = reply[1].decode()
        tenants, leave_first, parts, others, limit, used, asked = reply[7:]
        retry = None  # a tenant that may not queue gains nothing by coming again
        if bound != "blocked":
            full = Fullness(
                of_tenant=bound.startswith("tenant"),
                leave_first=leave_first,
                tenants_waiting=tenants,
                parts=parts,
                parts_of_others=others,
            )
            retry = policy.retry_after_ms(window=_window(reply[2:7]), full=full)
        raise QueueFull(full_text(bound, limit=limit, used=used, asked=asked), retry_after_ms=retry)
    raise DeadlinePassed("The request came to the queue after its deadline, or after it was cancelled.")


def claimed(reply: list[Any]) -> Claim | Wait:
    if reply[0] == b"wait":
        return Wait(until_ms=int(reply[1]) if reply[1] else None)
    _, head, body, fence, attempt, log_length, queue_us, deaths, *counts = reply
    prompt, cached, completion, reasoning = counts
    return Claim(
        ticket=replace(decode(Ticket, head), body=body),
        fence=fence.decode(),
        attempt=attempt,
        log_length=log_length,
        queue_us=queue_us,
        engine_deaths=deaths,
        counts=TokenCounts(prompt=prompt, cached=cached, completion=completion, reasoning=reasoning),
    )


def stepped(reply: list[Any]) -> StepReply:
    flat, stale = reply
    pairs = zip(flat[::2], flat[1::2], strict=True)
    return StepReply(
        aborts=[Abort(request_id=rid.decode(), reason=AbortReason(why.decode())) for rid, why in pairs],
        stale=[rid.decode() for rid in stale],
    )


def reaped(reply: list[int]) -> ReapReport:
    requeued, ended, expired, dead, wakes = reply
    return ReapReport(requeued=requeued, ended=ended, expired=expired, dead_lettered=dead, wakes_passed=wakes)


def log_slice(reply: list[Any] | None, *, after_seq: int) -> LogSlice | None:
    if reply is None:
        return None
    state, epoch, final, frames, writers = reply
    lines = [line.rpartition(" ") for line in writers.decode().splitlines()]
    return LogSlice(
        frames=frames,
        first_seq=after_seq + 1,
        epoch=epoch.decode(),
        state=JobState(state.decode()),
        final=decode(Final, final) if final else None,
        writers={writer: int(last_seq) for writer, _, last_seq in lines},
    )


def job_status(reply: list[Any] | None, *, request_id: str) -> JobStatus | None:
    if reply is None:
        return None
    position, queued_us, flat = reply
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    ticket = decode(Ticket, fields[b"head"])
    return JobStatus(
        request_id=request_id,
        state=JobState(fields[b"state"].decode()),
        tenant_id=ticket.tenant_id,
        position=position,
        generation=int(fields[b"generation"]),
        attempt=int(fields[b"attempt"] or 0),
        engine_deaths=int(fields[b"deaths"] or 0),
        lapses=int(fields[b"lapses"] or 0),
        counts=counts_of(fields),
        last_seq=int(fields[b"last_seq"] or 0),
        queued_ms=queued_us // 1000,
        worker_id=fields[b"worker"].decode(),
        outcome=fields.get(b"outcome", b"").decode(),
        error_code=fields.get(b"error", b"").decode(),
        ticket=ticket,
    )


def usage_records(reply: list[list[bytes]]) -> list[UsageRecord]:
    return [usage_from_stream(dict(zip(flat[::2], flat[1::2], strict=True))) for flat in reply]


def queue_depths(reply: list[int]) -> QueueDepths:
    waiting, waiting_bytes, tenants, running, unsettled, idle, dead, *_, waiting_tokens = reply
    return QueueDepths(
        waiting=waiting,
        waiting_bytes=waiting_bytes,
        waiting_tokens=waiting_tokens,
        tenants_waiting=tenants,
        running=running,
        unsettled=unsettled,
        idle_workers=idle,
        dead_letters=dead,
    )


def service_rate(reply: list[int]) -> ServiceRate:
    window = _window(reply[7:12])
    return ServiceRate(
        requests_per_1000s=policy.per_1000s(
            current=window.requests, before=window.requests_before, into_ms=window.into_ms
        ),
        tokens_per_1000s=policy.per_1000s(current=window.tokens, before=window.tokens_before, into_ms=window.into_ms),
    )


def _window(figures: list[int]) -> RateWindow:
    into_ms, requests, tokens, requests_before, tokens_before = figures
    return RateWindow(
        into_ms=into_ms,
        requests=requests,
        tokens=tokens,
        requests_before=requests_before,
        tokens_before=tokens_before,
    )
