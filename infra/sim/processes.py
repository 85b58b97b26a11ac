"""Gateway, worker and settler as state machines that follow the request protocol's order of writes. Called by `world`.

Each is a generator: what it keeps in its variables is lost when it dies, what it wrote to a store is not. Invariant:
every yield is one write or one pause, so a crash can come between any two.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Any

from contracts.errors import DeadlinePassed, QueueFull
from contracts.jobs import Claim, Ticket
from contracts.outcomes import JobState, Outcome
from contracts.tokens import TokenCounts
from fairqueue.messages import AbortReason, CancelReply, StepEntry, Wait
from fairqueue.model import PoolModel
from infra.sim.engine import LOST, Call, Process, Sleep
from infra.sim.stores import Hold, Refused, TenantSlot

HOLD_TTL_MS = 3_000
VOID_MARGIN_MS = 5_000
EXPIRES_MS = 60_000
STEP_US = 20_000
LOOK_US = 100_000
IDLE_US = 200_000  # a wake comes sooner; what is shown here does not depend on it
SLOTS = 3
TRIES = 8
DECODED = 4  # tokens of one engine step
Asking = Generator[Call | Sleep, Any, Any]


@dataclass(slots=True)
class Reader:
    """What one client sees of one request. `end`: "" while it reads, then done, failed, refused or gone.

    `writers` are the fences under which its frames were read.
    """

    key: str
    request_id: str = ""
    frames: list[bytes] = field(default_factory=list)
    end: str = ""
    cancelled_at: int = -1  # attempts that there had been when the client was told that its request is over
    writers: set[str] = field(default_factory=set)


def frame(request_id: str, number: int, attempt: int) -> bytes:
    """What the engine generates at one step: of a plain request what follows from its log, of another no two alike."""
    return f"{request_id}:{number}{'' if is_plain(request_id) else f'/{attempt}'}".encode()


def is_plain(request_id: str) -> bool:
    """Whether another worker can go on with it in mid-stream; of three requests two are so."""
    return sum(request_id.encode()) % 3 != 0


def gateway(
    pool: PoolModel, slot: TenantSlot, ticket: Ticket, reader: Reader, *, name: str, leaves_after_us: int
) -> Process:
    """Hold, enqueue, stream; cancel under its own generation when the client leaves."""
    hold = yield from _insist(
        lambda now: slot.hold(
            now,
            request_id=ticket.request_id,
            key=reader.key,
            prompt=ticket.prompt_tokens,
            output=ticket.max_tokens,
            ttl_ms=HOLD_TTL_MS,
        ),
        "hold",
    )
    if not isinstance(hold, Hold):
        reader.end = "refused"
        return
    rid = reader.request_id = hold.request_id
    ticket = replace(ticket, request_id=rid)
    entered = yield from _insist(
        lambda now: pool.enqueue(
            ticket,
            now_us=now,
            size=100,
            mailbox=name,
            enqueue_deadline_ms=hold.deadline_ms,
            weight_milli=1_000,
            queued_max=100,
            expires_at_ms=hold.deadline_ms + EXPIRES_MS,
        ),
        "enqueue",
    )
    if isinstance(entered, DeadlinePassed | QueueFull):
        yield from _insist(lambda now: slot.void(now, request_id=rid), "void")
        reader.end = "refused"
        return
    if entered is LOST:
        reader.end = "gone"  # whether it is queued nobody knows: the settler looks
        return
    yield from _stream(pool, reader, generation=entered.generation, leaves_after_us=leaves_after_us)


def _stream(pool: PoolModel, reader: Reader, *, generation: int, leaves_after_us: int) -> Process:
    rid, waited = reader.request_id, 0
    while True:
        seen = yield Call("read", lambda _: _piece(pool, rid, len(reader.frames)))
        if seen is not LOST:
            fence, frames, state, outcome = seen
            if frames:
                reader.writers.add(fence)
                reader.frames += frames
            if state is JobState.SETTLED:
                reader.end = "done" if outcome == Outcome.OK.value else "failed"
                return
        if leaves_after_us and waited >= leaves_after_us:
            reply = yield from _insist(
                lambda now: pool.cancel(now_us=now, request_id=rid, generation=generation, reason="cancelled"), "cancel"
            )
            reader.end = "gone"
            if reply in (CancelReply.ENDED, CancelReply.TOMBSTONED):
                reader.cancelled_at = pool.jobs[rid].attempt
            return
        waited += LOOK_US
        yield Sleep(LOOK_US)


def _piece(pool: PoolModel, rid: str, after: int) -> tuple[str, list[bytes], JobState, str]:
    job = pool.jobs[rid]
    return job.fence, job.log[after:], job.state, job.outcome


@dataclass(slots=True)
class Attempt:
    """One claim in a worker's memory. `sent` frames were taken by the log for sure.

    It begins after the frames of the attempts before it, which only a plain request has.
    """

    claim: Claim
    generated: int = 0
    sent: int = 0
    abort: AbortReason | None = None

    def __post_init__(self) -> None:
        self.generated = self.sent = self.claim.log_length

    @property
    def ids(self) -> list[bytes]:
        """With each frame the ids of its tokens, as many as it is billed for."""
        if not is_plain(self.claim.ticket.request_id):
            return []
        most = self.claim.ticket.max_tokens
        return [
            bytes(4 * (min(number * DECODED, most) - (number - 1) * DECODED))
            for number in range(self.sent + 1, self.generated + 1)
        ]

    def frames(self) -> list[bytes]:
        request_id, attempt = self.claim.ticket.request_id, self.claim.attempt
        return [frame(request_id, number, attempt) for number in range(self.sent + 1, self.generated + 1)]

    @property
    def is_finished(self) -> bool:
        return self.generated * DECODED >= self.claim.ticket.max_tokens

    @property
    def counts(self) -> TokenCounts:
        prompt = self.claim.ticket.prompt_tokens if self.generated else 0
        return TokenCounts(prompt=prompt, completion=min(self.generated * DECODED, self.claim.ticket.max_tokens))


def worker(pool: PoolModel, slot: TenantSlot, *, name: str, nonces: Any, engine_dies: Any) -> Process:
    """Claim, start, step*, end, settle, ack. `nonces` and `engine_dies` are drawn from the world's seed."""
    yield from _insist(lambda now: pool.register(now_us=now, worker_id=name), "register")
    running: dict[str, Attempt] = {}
    nonce = nonces()
    while True:
        if len(running) < SLOTS:
            claim = yield Call("claim", _claiming(pool, name, nonce, SLOTS - len(running)))
            if claim is not LOST:
                nonce = nonces()
                if isinstance(claim, Claim):
                    yield from _begin(pool, slot, name, running, claim)
        if running:
            yield from _engine_step(pool, name, running, dies=engine_dies())
        for rid in [rid for rid, attempt in running.items() if attempt.abort or attempt.is_finished]:
            attempt = running[rid]
            if attempt.abort is AbortReason.FENCE:
                del running[rid]
            elif attempt.abort or attempt.sent == attempt.generated:
                del running[rid]
                yield from _finish(pool, slot, name, attempt)
        yield Sleep(STEP_US if running else IDLE_US)


def _claiming(pool: PoolModel, name: str, nonce: str, slots: int) -> Any:
    def claim(now: int) -> Claim | Wait:
        return pool.claim(now_us=now, worker_id=name, nonce=nonce, free_kv_tokens=1 << 20, free_slots=slots)

    return claim


def _begin(pool: PoolModel, slot: TenantSlot, name: str, running: dict[str, Attempt], claim: Claim) -> Asking:
    rid, attempt = claim.ticket.request_id, Attempt(claim)
    started = yield from _insist(lambda now: slot.start(now, request_id=rid, attempt=claim.attempt), "start")
    if started is LOST:
        yield from _insist(lambda now: pool.hand_back(now_us=now, request_id=rid, fence=claim.fence), "hand_back")
    elif started is not True:
        yield from _end(pool, attempt, Outcome.CANCELLED, "hold_ended")
    else:
        running[rid] = attempt


def _engine_step(pool: PoolModel, name: str, running: dict[str, Attempt], *, dies: bool) -> Asking:
    if dies:
        fences = {rid: attempt.claim.fence for rid, attempt in running.items()}
        yield from _insist(lambda now: pool.engine_died(now_us=now, fences=fences), "engine_died")
        running.clear()
    for attempt in running.values():
        attempt.generated += not attempt.is_finished
    entries = [
        StepEntry(
            request_id=rid,
            fence=attempt.claim.fence,
            first_seq=attempt.sent + 1,
            frames=attempt.frames(),
            counts=attempt.counts,
            delivered_tokens=attempt.counts.completion,
            progressed=True,
            ids=attempt.ids,
        )
        for rid, attempt in running.items()
    ]
    holding = list(running)
    reply = yield Call("step", lambda now: pool.step(now_us=now, worker_id=name, entries=entries, holding=holding))
    if reply is LOST:
        return  # the same frames go with the next step
    for attempt in running.values():
        attempt.sent = attempt.generated
    for abort in reply.aborts:
        if abort.request_id in running:
            running[abort.request_id].abort = abort.reason


def _finish(pool: PoolModel, slot: TenantSlot, name: str, attempt: Attempt) -> Asking:
    outcome, error = Outcome.OK, ""
    if attempt.abort in (AbortReason.CANCELLED, AbortReason.REVOKED):
        outcome, error = Outcome.CANCELLED, "request_cancelled"
    elif attempt.abort:
        outcome, error = Outcome.FAILED, "worker_lost"
    ended = yield from _end(pool, attempt, outcome, error)
    if ended == "ended":
        yield from _settle(pool, slot, attempt.claim.ticket.request_id)


def _end(pool: PoolModel, attempt: Attempt, outcome: Outcome, error: str) -> Asking:
    ended = yield from _insist(
        lambda now: pool.end(
            now_us=now,
            request_id=attempt.claim.ticket.request_id,
            fence=attempt.claim.fence,
            last_seq=attempt.sent,
            outcome=outcome,
            error_code=error,
            counts=attempt.counts,
            delivered_tokens=attempt.counts.completion,
        ),
        "end",
    )
    return ended


def _settle(pool: PoolModel, slot: TenantSlot, rid: str) -> Asking:
    """From the usage record that `end` wrote, whoever settles."""
    counts = pool.jobs[rid].counts
    settled = yield from _insist(lambda now: slot.settle(now, request_id=rid, counts=counts), "settle")
    if settled is not LOST:
        yield from _insist(lambda _: pool.ack(request_id=rid), "ack")


def settler(pool: PoolModel, slot: TenantSlot) -> Process:
    """Reap, settle what others left, void what was never queued: the pool's look comes first."""
    while True:
        yield Call("reap", lambda now: pool.reap(now_us=now, limit=256))
        for rid in list(pool.unsettled):
            yield from _settle(pool, slot, rid)
        late = yield Call("due", lambda now: slot.due(now, margin_ms=VOID_MARGIN_MS))
        for rid in () if late is LOST else late:
            known = yield Call("look", _looking(pool, rid))
            if known is False:
                yield Call("void", _voiding(slot, rid))
        yield Sleep(1_000_000)


def _looking(pool: PoolModel, rid: str) -> Any:
    return lambda _: pool.look(request_id=rid)


def _voiding(slot: TenantSlot, rid: str) -> Any:
    return lambda now: slot.void(now, request_id=rid)


def _insist(run: Any, name: str) -> Asking:
    """The call again while its answer is lost, a bounded number of times. A refusal is an answer."""
    for _ in range(TRIES):
        try:
            answer = yield Call(name, run)
        except (DeadlinePassed, QueueFull, Refused) as refusal:
            return refusal
        if answer is not LOST:
            return answer
    return LOST
