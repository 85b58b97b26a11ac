"""Step 5, QUEUE: what goes in and out of the fair queue, and what it publishes.

Used by the gateway (mailbox entries, log slices), the worker (step entries, aborts), the settler and the meter (usage).
Invariant: a usage record is revived from the stream and from the job by the same function, so both say the same.
"""

import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import msgpack

from contracts.jobs import Claim, Ticket, Timings, UsageRecord
from contracts.outcomes import JobState, Outcome
from contracts.tokens import TokenCounts
from contracts.wire import WireError, decode

__all__ = [
    "Abort",
    "AbortReason",
    "CancelReply",
    "Claim",
    "Ended",
    "Enqueued",
    "Final",
    "JobStatus",
    "LogSlice",
    "Place",
    "QueueDepths",
    "ReapReport",
    "Released",
    "ServiceRate",
    "StepEntry",
    "StepReply",
    "Wait",
    "cancel_code",
    "decode_mailbox",
    "final_of",
    "usage_from_stream",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Final:
    """How a request ended, as `ack` publishes it and keeps it on the job. The gateway builds the last events of it."""

    request_id: str
    outcome: Outcome
    finish_reason: str
    error_code: str
    error_message: str
    status: int
    counts: TokenCounts
    cost_nano: int
    currency: str
    attempt: int
    timings: Timings
    verdicts: tuple[str, ...] = ()
    error_param: str = ""  # the field of the request that the engine refused, where one is known
    budget_cut: bool = False  # `length` is then the budget's doing


@dataclass(frozen=True, slots=True, kw_only=True)
class Enqueued:
    """An accepted request. `position` counts from 1 and is an estimate under fair order; `already` = it was known."""

    position: int
    generation: int
    already: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Nothing to claim now. `until_ms` (pool clock): look again then, without a wake; None: a wake will come."""

    until_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEntry:
    """What one engine step did for one request. `counts` and `delivered_tokens` are cumulative for the attempt.

    `frames` may be empty (prefill that moves on); `first_seq` is then the seq of the next frame. `progressed` extends
    the lease. `ids`: for each frame the token ids that came with it (`pack_ids`), where another worker could go on with
    the request; else none.
    """

    request_id: str
    fence: str
    first_seq: int
    frames: list[bytes]
    counts: TokenCounts
    delivered_tokens: int
    progressed: bool
    ids: Sequence[bytes] = ()


class AbortReason(StrEnum):
    """Why a worker stops a request."""

    CANCELLED = "cancelled"  # the client or an operator; end it as CANCELLED
    REVOKED = "revoked"  # its key was revoked; end it as CANCELLED
    FENCE = "fence"  # it is no longer this worker's: drop it, write nothing
    GAP = "gap"  # the log lost frames (failover): end it as FAILED
    LOG_FULL = "log_full"  # the log's byte cap is reached: end it as FAILED


def cancel_code(reason: str) -> str:
    """The error code of a request that was cancelled for a reason."""
    return "key_revoked" if reason == AbortReason.REVOKED else "request_cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    request_id: str
    reason: AbortReason


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReply:
    """`stale` names entries whose fence no longer holds; each of them is in `aborts` too, as `fence`."""

    aborts: list[Abort]
    stale: list[str]


class CancelReply(StrEnum):
    """What a cancel found. A repeated cancel gets the same answer, or `ended` once the worker has ended it."""

    TOMBSTONED = "tombstoned"
    ENDED = "ended"
    FLAGGED = "flagged"
    ALREADY_ENDED = "already_ended"
    STALE = "stale"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSlice:
    """Released frames from `first_seq` on. `final` is set once the request is settled.

    `writers`: the last seq of each earlier attempt that had a log, by its epoch.
    """

    frames: list[bytes]
    first_seq: int
    epoch: str
    state: JobState
    final: Final | None
    writers: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """What the pool knows of a request. `ticket.body` is empty here; `position` is 0 unless it waits."""

    request_id: str
    state: JobState
    tenant_id: str
    position: int
    generation: int
    attempt: int
    engine_deaths: int
    lapses: int
    counts: TokenCounts
    last_seq: int
    queued_ms: int
    worker_id: str
    outcome: str
    error_code: str
    ticket: Ticket


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a waiting request stands: from 1, how long it has waited, and an estimate of how long it still will.

    `wait_ms` None: nothing has ended lately that it could be told from.
    """

    position: int
    waited_ms: int
    wait_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReapReport:
    """What one sweep did: leases that lapsed (requeued or ended), waiting requests that expired, wakes passed on."""

    requeued: int
    ended: int
    expired: int
    dead_lettered: int
    wakes_passed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDepths:
    waiting: int
    waiting_bytes: int
    waiting_tokens: int  # prompts and longest answers
    tenants_waiting: int
    running: int
    unsettled: int
    idle_workers: int
    dead_letters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRate:
    """Finished work of the pool over the last one to two minutes: per 1,000 seconds, so that it stays whole."""

    requests_per_1000s: int
    tokens_per_1000s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """Mailbox entry: frames of one request; the seq of frame i is `first_seq + i`."""

    request_id: str
    epoch: str
    first_seq: int
    frames: list[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Mailbox entry: the end of one request; `last_seq` is the seq of its last frame."""

    request_id: str
    epoch: str
    last_seq: int
    final: Final


def decode_mailbox(data: bytes) -> list[Released | Ended]:
    """Entries of one published message, in order. Raises WireError for another shape."""
    try:
        entries = msgpack.unpackb(data, raw=True)
        return [_mailbox_entry(entry) for entry in entries]
    except (ValueError, TypeError, AttributeError, msgpack.UnpackException) as error:
        raise WireError(f"not a mailbox message: {error}") from error


def _mailbox_entry(entry: list[object]) -> Released | Ended:
    kind, request_id, epoch, seq, rest = entry
    names = {"request_id": _text(request_id), "epoch": _text(epoch)}
    if kind == b"f" and isinstance(seq, int) and isinstance(rest, list):
        return Released(**names, first_seq=seq, frames=rest)
    if kind == b"e" and isinstance(seq, int) and isinstance(rest, bytes):
        return Ended(**names, last_seq=seq, final=decode(Final, rest))
    raise WireError(f"mailbox entry of kind {kind!r}")


_FINAL_OF: dict[Outcome, tuple[int, str, str]] = {
    Outcome.OK: (200, "", ""),
    Outcome.GUARDRAIL: (200, "content_policy_violation", "The output was stopped by a guardrail policy."),
    Outcome.CANCELLED: (499, "request_cancelled", "The request was cancelled."),
    Outcome.EXPIRED: (504, "deadline_exceeded", "The request's deadline passed while it waited in the queue."),
    Outcome.FAILED: (502, "worker_lost", "The worker that ran the request was lost."),
}
_TEXT_OF = {
    "key_revoked": "The API key was revoked, or its organization suspended, while the request ran.",
    "worker_lost": "The worker that ran the request was lost after output had been released.",
    "dead_letter": "The request was set aside because engines died or leases lapsed while they ran it.",
    "engine_error": "The engine could not finish the request.",
}


def final_of(record: UsageRecord, *, cost_nano: int) -> Final:
    """The final frame for a usage record: what the worker and the sweeper both publish, so they cannot differ."""
    outcome = Outcome(record.outcome)
    status, code, message = _FINAL_OF[outcome]
    code = record.error_code or code
    if code == "key_revoked":
        status = 401
    return Final(
        request_id=record.request_id,
        outcome=outcome,
        finish_reason=record.finish_reason,
        error_code=code,
        error_message=_TEXT_OF.get(code, message),
        status=status,
        counts=record.counts,
        cost_nano=cost_nano,
        currency=record.price.currency,
        attempt=record.attempt,
        timings=record.timings,
        verdicts=record.verdicts,
        error_param=record.error_param,
        budget_cut=record.budget_cut,
    )


def usage_from_stream(fields: Mapping[bytes, bytes]) -> UsageRecord:
    """The usage record of one stream entry (or of an unsettled job: same fields). Raises WireError, KeyError."""
    ticket = decode(Ticket, fields[b"ticket"])
    timings = fields.get(b"timings", b"")
    policy = ticket.policy
    return UsageRecord(
        request_id=ticket.request_id,
        revision=1,
        tenant_id=ticket.tenant_id,
        project_id=ticket.project_id,
        api_key_id=ticket.api_key_id,
        pool=ticket.pool,
        model=ticket.model,
        endpoint=ticket.endpoint.value,
        service_class=ticket.service_class.value,
        admitted_at_ms=ticket.admitted_at_ms,
        billed_at_ms=_number(fields, b"billed_at_ms"),
        counts=counts_of(fields),
        delivered_tokens=_number(fields, b"delivered"),
        outcome=_text(fields[b"outcome"]),
        finish_reason=_text(fields.get(b"finish", b"")),
        error_code=_text(fields.get(b"error", b"")),
        attempt=_number(fields, b"attempt"),
        worker_id=_text(fields.get(b"worker", b"")),
        price=ticket.price,
        timings=decode(Timings, timings) if timings else _queued_timings(ticket, fields),
        policy_id=policy.policy_id if policy else "",
        policy_version=policy.version if policy else 0,
        verdicts=ticket.guard_prompt + _verdicts(fields.get(b"verdicts", b"")),
        stream=ticket.stream,
        end_user_hash=ticket.end_user_hash,
        log_key=_text(fields.get(b"log_key", b"")),
        budget_cut=ticket.budget_cut,
        error_param=_text(fields.get(b"param", b"")),
    )


def counts_of(fields: Mapping[bytes, bytes]) -> TokenCounts:
    """Token counts of a usage entry or a job; missing fields are 0."""
    return TokenCounts(
        prompt=_number(fields, b"prompt"),
        cached=_number(fields, b"cached"),
        completion=_number(fields, b"completion"),
        reasoning=_number(fields, b"reasoning"),
    )


def pack_verdicts(verdicts: Iterable[str]) -> bytes:
    lines = list(verdicts)
    packed: bytes = msgpack.packb(lines) if lines else b""
    return packed


def pack_ids(ids: Iterable[int]) -> bytes:
    """Token ids as the log keeps them: little-endian words of four bytes. Raises OverflowError."""
    words = array("I", ids)
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def unpack_ids(data: bytes) -> list[int]:
    """Raises WireError for a part of a word."""
    if len(data) % 4:
        raise WireError(f"{len(data)} bytes are not token ids")
    words = array("I", data)
    if sys.byteorder == "big":
        words.byteswap()
    return words.tolist()


def without_body(ticket: Ticket) -> Ticket:
    """The ticket as usage records carry it: no prompt leaves the job."""
    return replace(ticket, body=b"")


def _queued_timings(ticket: Ticket, fields: Mapping[bytes, bytes]) -> Timings:
    return Timings(edge_us=ticket.edge_us, guard_us=ticket.guard_us, queue_us=_number(fields, b"queue_us"))


def _verdicts(data: bytes) -> tuple[str, ...]:
    return tuple(msgpack.unpackb(data)) if data else ()


def _number(fields: Mapping[bytes, bytes], name: bytes) -> int:
    return int(fields.get(name) or 0)


def _text(value: object) -> str:
    if not isinstance(value, bytes):
        raise WireError(f"expected bytes, not {type(value).__name__}")
    return value.decode()
