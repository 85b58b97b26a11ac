"""Step 5, QUEUE: the state that the reference model moves, and the moves that several operations share. Pure.

Called by `model` only; it mirrors scripts/shared/pool.lua function by function. Invariant: every end passes `_close`.
"""

from dataclasses import dataclass, field, replace

from contracts.jobs import Ticket
from contracts.outcomes import JobState, Outcome
from contracts.tenancy import ServiceClass
from contracts.tokens import TokenCounts
from fairqueue import policy, prefix
from fairqueue.messages import ReapReport, cancel_code
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
    epoch: str = ""  # the fence of the last attempt, also when nobody has the request
    writers: list[tuple[str, int]] = field(default_factory=list)  # earlier epochs, and their last seq
    worker: str = ""
    lease_ms: int = 0
    claimed_ms: int = 0
    queue_us: int = 0
    log: list[bytes] = field(default_factory=list)
    log_bytes: int = 0
    ids: bytes = b""  # token ids of what was released, words of four bytes
    ids_seq: int = 0  # the log is covered by them up to here
    counts: TokenCounts = NOTHING
    delivered: int = 0
    paid: int = 0
    spent: int = 0
    charged_tokens: int = 0
    charged_ms: int = 0
    deaths: int = 0
    lapses: int = 0
    drain: str = ""  # the worker that was to drain for it
    cancel: str = ""
    blocking: bool = False
    passed_v: int | None = None
    outcome: str = ""
    error: str = ""

    @property
    def need(self) -> int:
        return kv_need(self.ticket)

    @property
    def batch(self) -> bool:
        return self.ticket.service_class is ServiceClass.BATCH

    @property
    def prefix(self) -> str:
        return prefix.prefix_key(self.ticket)

    @property
    def prepaid_output(self) -> int:
        return policy.prepaid_output(self.ticket.max_tokens, self.ticket.choices)


@dataclass(slots=True)
class Lane:
    """One service class: a fair queue of its own."""

    counters: dict[str, int] = field(default_factory=dict)
    waiting_tenants: set[str] = field(default_factory=set)  # those whose counter is ordered for claims
    v: int = 0
    pass_v: int | None = None

    def order(self) -> list[str]:
        return sorted(self.waiting_tenants, key=lambda tenant: (self.counters[tenant], tenant))


@dataclass(slots=True, kw_only=True)
class Look:
    """One claim's look at the queue: who looks, and what it found."""

    worker: str
    now_us: int
    free_kv: int
    fits_all: bool
    chosen: str | None = None
    stopped: str = ""  # "again": too many had expired; "blocked": a head may not be passed now; "drains": for a suspect
    passed: list[Job] = field(default_factory=list)
    unfit: bool = False
    left_until: int | None = None
    expired: int = 0


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
        self.lanes = {False: Lane(), True: Lane()}  # interactive, batch
        self.lead = 0
        self.warm: dict[str, str] = {}  # prefix -> the worker that served it last
        self.warm_of: dict[str, dict[str, int]] = {}  # worker -> its prefixes -> ms
        self.alone: dict[str, str] = {}  # worker -> the request that it runs alone, or drains for
        self.receipts: dict[str, str] = {}
        self.idle: dict[str, int] = {}
        self.wakes: dict[str, int] = {}
        self.usage: list[str] = []  # request ids in the order of their usage records
        self.unsettled: dict[str, int] = {}
        self.dead: list[str] = []
        self.seq = 0

    # Order of claims ------------------------------------------------------------------------------------------------

    def lane_of(self, job: Job) -> Lane:
        return self.lanes[job.batch]

    def queue_of(self, tenant: str, *, batch: bool) -> list[str]:
        waiting = [
            rid
            for rid, job in self.jobs.items()
            if job.state == JobState.QUEUED and owner(job) == tenant and job.batch == batch
        ]
        return sorted(waiting, key=lambda rid: self.jobs[rid].seq)

    def queued(self) -> list[Job]:
        return [job for job in self.jobs.values() if job.state == JobState.QUEUED]

    def waiting(self) -> int:
        return len(self.queued())

    def position(self, rid: str) -> int:
        job = self.jobs[rid]
        if job.state != JobState.QUEUED:
            return 0
        tenant, order = owner(job), self.lane_of(job).order()
        before = self.queue_of(tenant, batch=job.batch).index(rid) * len(order) + order.index(tenant)
        if self.lanes[not job.batch].waiting_tenants:
            shares = {False: policy.INTERACTIVE_SHARE, True: policy.BATCH_SHARE}
            before += before * shares[not job.batch] // shares[job.batch]
        return 1 + min(self.waiting() - 1, before)

    def held_by(self, worker: str) -> list[str]:
        return [rid for rid, job in self.jobs.items() if job.state == JobState.RUNNING and job.worker == worker]

    # Counters -------------------------------------------------------------------------------------------------------

    def _charge(self, job: Job, paid: int) -> None:
        """Sets what the request has paid, cumulatively, and moves its tenant and its class by the difference."""
        delta, before = paid - job.paid, job.paid
        job.paid = paid
        self.lead += policy.led(before=before, after=paid, weight_milli=job.weight, batch=job.batch)
        self._place(job, delta)

    def is_suspect(self, job: Job) -> bool:
        """It ran at so many engine deaths that it may be what kills them."""
        return job.deaths >= self.bounds.deaths_max

    def _drains_for(self, rid: str, worker: str) -> bool:
        job = self.jobs[rid]
        if self.alone.get(job.drain) == rid and self.held_by(job.drain):
            return False
        job.drain, self.alone[worker] = worker, rid
        return True

    def _place(self, job: Job, delta: int) -> None:
        lane, tenant = self.lane_of(job), owner(job)
        counter = lane.counters.get(tenant, lane.v) + delta
        if self.queue_of(tenant, batch=job.batch):
            if tenant not in lane.waiting_tenants:
                counter = policy.lifted(counter, lane.v)
                if not lane.waiting_tenants:
                    self.lead = policy.without_credit(self.lead, batch=job.batch)
            lane.waiting_tenants.add(tenant)
        else:
            lane.waiting_tenants.discard(tenant)
        if tenant in lane.waiting_tenants or tenant in self._running(batch=job.batch) or counter > lane.v:
            lane.counters[tenant] = counter
        else:
            lane.counters.pop(tenant, None)

    def _running(self, *, batch: bool) -> set[str]:
        return {owner(job) for job in self.jobs.values() if job.state == JobState.RUNNING and job.batch == batch}

    def _advance(self, job: Job) -> None:
        lane, counter = self.lane_of(job), self.lane_of(job).counters[owner(job)]
        if counter <= lane.v:
            return
        lane.v = counter
        running = self._running(batch=job.batch)
        for tenant in [t for t, c in lane.counters.items() if c <= lane.v]:
            if tenant not in lane.waiting_tenants and tenant not in running:
                del lane.counters[tenant]

    # Prefixes -------------------------------------------------------------------------------------------------------

    def _remember(self, worker: str, key: str, now_ms: int) -> None:
        self.warm[key] = worker
        mine = self.warm_of.setdefault(worker, {})
        mine[key] = now_ms
        if len(mine) > policy.WARM_MAX:
            oldest = min(mine, key=lambda known: (mine[known], known))
            del mine[oldest]
            if self.warm.get(oldest) == worker:
                del self.warm[oldest]

    def _forget(self, worker: str) -> None:
        for key in self.warm_of.pop(worker, {}):
            if self.warm.get(key) == worker:
                del self.warm[key]

    # Wakes ----------------------------------------------------------------------------------------------------------

    def _wake_one(self, now_ms: int, holder: str | None = None) -> int:
        unseen = sorted((worker != holder, seen, worker) for worker, seen in self.idle.items() if seen < self.seq)
        if not unseen:
            return 0
        worker = unseen[0][2]
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
        blocked, job.blocking = job.blocking, False
        job.ids = b""
        self.usage.append(rid)
        self.unsettled[rid] = now_us // 1000
        self._charge(job, job.spent)
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

    def _carry_over(self, job: Job, now_ms: int) -> None:
        completion = min(job.counts.completion, len(job.ids) // 4)
        job.counts = replace(job.counts, completion=completion, reasoning=min(job.counts.reasoning, completion))
        job.delivered = completion
        job.expires_ms = max(job.expires_ms, now_ms + job.expires_ms - job.since_us // 1000)

    def _give_up(self, rid: str, now_us: int, why: str, tally: Tally) -> None:
        job = self.jobs[rid]
        job.lapses += why == "lapse"
        job.deaths += why == "death"
        if why != "back":
            self._forget(job.worker)
        self._bill_log(job)
        worn_out = job.deaths > self.bounds.deaths_max or job.lapses >= self.bounds.lapses_max
        if job.cancel:
            self._close(rid, now_us, Outcome.CANCELLED, cancel_code(job.cancel))
            tally.ended += 1
        elif len(job.log) != job.ids_seq:  # not all that was released can be replayed
            self._close(rid, now_us, Outcome.FAILED, "worker_lost")
            tally.ended += 1
        elif why != "back" and worn_out:
            self.dead.append(rid)
            self._close(rid, now_us, Outcome.FAILED, "dead_letter")
            tally.dead += 1
        else:
            if job.log:
                self._carry_over(job, now_us // 1000)
            job.state, job.fence, job.worker, job.since_us = JobState.QUEUED, "", "", now_us
            self._charge(job, job.spent)
            self._changed(now_us // 1000)
            tally.requeued += 1


def owner(job: Job) -> str:
    return job.ticket.tenant_id


def kv_need(ticket: Ticket) -> int:
    return policy.kv_need(prompt_tokens=ticket.prompt_tokens, max_tokens=ticket.max_tokens, choices=ticket.choices)
