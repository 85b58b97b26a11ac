"""Step 5, QUEUE: the state that the reference model moves, and the moves that several operations share. Pure.

Called by `model` only; it mirrors scripts/shared/pool.lua function by function. Invariant: every end passes `_close`.
"""

from dataclasses import dataclass, field

from contracts.jobs import Ticket
from contracts.outcomes import JobState, Outcome
from contracts.tokens import TokenCounts
from fairqueue import policy
from fairqueue.messages import ReapReport
from fairqueue.policy import QueueBounds

NOTHING = TokenCounts()


@dataclass(slots=True, kw_only=True)
class Job:
    """One request. Times in microseconds where the name says so, else milliseconds."""

    ticket: Ticket
    seq: int
    size: int
    weight: int
    expires_ms: int
    mailboxes: list[str]
    since_us: int
    state: JobState = JobState.QUEUED
    generation: int = 1
    attempt: int = 0
    fence: str = ""
    worker: str = ""
    lease_ms: int = 0
    claimed_ms: int = 0
    queue_us: int = 0
    log: list[bytes] = field(default_factory=list)
    log_bytes: int = 0
    counts: TokenCounts = NOTHING
    delivered: int = 0
    paid: int = 0
    spent: int = 0
    charged_tokens: int = 0
    charged_ms: int = 0
    deaths: int = 0
    lapses: int = 0
    cancel: str = ""
    blocking: bool = False
    passed_v: int | None = None
    outcome: str = ""
    error: str = ""

    @property
    def need(self) -> int:
        ticket = self.ticket
        return policy.kv_need(prompt_tokens=ticket.prompt_tokens, max_tokens=ticket.max_tokens, choices=ticket.choices)

    @property
    def prepaid_output(self) -> int:
        return policy.prepaid_output(self.ticket.max_tokens, self.ticket.choices)


@dataclass(slots=True)
class Tally:
    requeued: int = 0
    ended: int = 0
    expired: int = 0
    dead: int = 0
    wakes: int = 0

    def report(self) -> ReapReport:
        return ReapReport(
            requeued=self.requeued,
            ended=self.ended,
            expired=self.expired,
            dead_lettered=self.dead,
            wakes_passed=self.wakes,
        )


class PoolState:
    """One pool: requests, counters, idle workers."""

    def __init__(self, bounds: QueueBounds, *, quantum: int = policy.QUANTUM_MILLI) -> None:
        self.bounds = bounds
        self.quantum = quantum
        self.jobs: dict[str, Job] = {}
        self.tombs: dict[str, str] = {}
        self.counters: dict[str, int] = {}
        self.waiting_tenants: set[str] = set()  # those whose counter is ordered for claims
        self.receipts: dict[str, str] = {}
        self.idle: dict[str, int] = {}
        self.wakes: dict[str, int] = {}
        self.usage: list[str] = []  # request ids in the order of their usage records
        self.unsettled: dict[str, int] = {}
        self.dead: list[str] = []
        self.v = 0
        self.seq = 0
        self.pass_v: int | None = None

    # Order of claims ------------------------------------------------------------------------------------------------

    def queue_of(self, tenant: str) -> list[str]:
        waiting = [rid for rid, job in self.jobs.items() if job.state == JobState.QUEUED and owner(job) == tenant]
        return sorted(waiting, key=lambda rid: self.jobs[rid].seq)

    def order(self) -> list[str]:
        return sorted(self.waiting_tenants, key=lambda tenant: (self.counters[tenant], tenant))

    def waiting(self) -> int:
        return sum(job.state == JobState.QUEUED for job in self.jobs.values())

    def position(self, rid: str) -> int:
        if self.jobs[rid].state != JobState.QUEUED:
            return 0
        tenant, order = owner(self.jobs[rid]), self.order()
        rank = self.queue_of(tenant).index(rid)
        return 1 + min(self.waiting() - 1, rank * len(order) + order.index(tenant))

    def held_by(self, worker: str) -> list[str]:
        return [rid for rid, job in self.jobs.items() if job.state == JobState.RUNNING and job.worker == worker]

    # Counters -------------------------------------------------------------------------------------------------------

    def _place(self, tenant: str, delta: int) -> None:
        counter = self.counters.get(tenant, self.v) + delta
        if self.queue_of(tenant):
            if tenant not in self.waiting_tenants:
                counter = policy.lifted(counter, self.v)
            self.waiting_tenants.add(tenant)
        else:
            self.waiting_tenants.discard(tenant)
        runs = any(job.state == JobState.RUNNING and owner(job) == tenant for job in self.jobs.values())
        if tenant in self.waiting_tenants or runs or counter > self.v:
            self.counters[tenant] = counter
        else:
            self.counters.pop(tenant, None)

    def _advance(self, counter: int) -> None:
        if counter <= self.v:
            return
        self.v = counter
        running = {owner(job) for job in self.jobs.values() if job.state == JobState.RUNNING}
        for tenant in [t for t, c in self.counters.items() if c <= self.v]:
            if tenant not in self.waiting_tenants and tenant not in running:
                del self.counters[tenant]

    # Wakes ----------------------------------------------------------------------------------------------------------

    def _wake_one(self, now_ms: int) -> int:
        unseen = sorted((seen, worker) for worker, seen in self.idle.items() if seen < self.seq)
        if not unseen:
            return 0
        worker = unseen[0][1]
        del self.idle[worker]
        self.wakes[worker] = now_ms
        return 1

    def _changed(self, now_ms: int) -> None:
        if self.waiting():
            self.seq += 1
            self._wake_one(now_ms)

    def _awake(self, worker: str) -> bool:
        self.idle.pop(worker, None)
        return self.wakes.pop(worker, None) is not None

    # Ends and returns -----------------------------------------------------------------------------------------------

    def _close(self, rid: str, now_us: int, outcome: Outcome, error: str) -> None:
        job = self.jobs[rid]
        if job.state == JobState.QUEUED:
            job.queue_us += max(now_us - job.since_us, 0)
        job.state, job.outcome, job.error = JobState.ENDED, outcome.value, error
        delta, job.paid = job.spent - job.paid, job.spent
        blocked, job.blocking = job.blocking, False
        self.usage.append(rid)
        self.unsettled[rid] = now_us // 1000
        self._place(owner(job), delta)
        if blocked:
            self._changed(now_us // 1000)

    def _bill_log(self, job: Job) -> None:
        if not job.log:
            job.counts, job.delivered = NOTHING, 0
            return
        completion = min(job.counts.completion, job.delivered)
        job.counts = TokenCounts(
            prompt=job.counts.prompt,
            cached=job.counts.cached,
            completion=completion,
            reasoning=min(job.counts.reasoning, completion),
        )

    def _give_up(self, rid: str, now_us: int, why: str, tally: Tally) -> None:
        job = self.jobs[rid]
        job.lapses += why == "lapse"
        job.deaths += why == "death"
        self._bill_log(job)
        worn_out = job.deaths >= self.bounds.deaths_max or job.lapses >= self.bounds.lapses_max
        if job.cancel:
            self._close(rid, now_us, Outcome.CANCELLED, "request_cancelled")
            tally.ended += 1
        elif job.log:
            self._close(rid, now_us, Outcome.FAILED, "worker_lost")
            tally.ended += 1
        elif why != "back" and worn_out:
            self.dead.append(rid)
            self._close(rid, now_us, Outcome.FAILED, "dead_letter")
            tally.dead += 1
        else:
            job.state, job.fence, job.worker, job.since_us = JobState.QUEUED, "", "", now_us
            delta, job.paid = job.spent - job.paid, job.spent
            self._place(owner(job), delta)
            self._changed(now_us // 1000)
            tally.requeued += 1


def owner(job: Job) -> str:
    return job.ticket.tenant_id
