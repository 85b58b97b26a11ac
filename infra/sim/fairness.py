"""A server with so many places, the arrivals of several tenants, and one rule that says who is next. Pure.

Called by bench `fairness` and its tests. Time is in steps: in one step every running request makes one token, as in a
batch that is decoded together; a prompt costs service, and no time. Service is what `fairqueue.policy` says it is, in
milli-tokens, for every rule alike; each rule knows of it when its origin does:

- `Fcfs`: who came first.
- `RoundRobin`: the tenants in turn, by request.
- `Las`: the tenant with the least attained service, which is charged when a request is done and fades with a half-life
  (as the least-attained-service plugin of llm-d's router does).
- `Vtc`: virtual token counter, charged for every token (Sheng et al., arXiv 2401.00588, algorithm 2).
- `Weir`: the arithmetic of `fairqueue.policy` as the queue's scripts apply it: prepaid, charged in ticks, settled at
  the end. `tests/simulation` holds it against the reference model, claim by claim.

Invariant: the same arrivals give the same run; no rule is told how long an answer will be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Protocol

from contracts.tokens import TokenCounts
from fairqueue import policy

WEIGHT = 1_000  # of every tenant, in thousandths
LAS_HALF_LIFE_MS = 60_000


@dataclass(slots=True, eq=False)
class Job:
    """One request: sizes in tokens, `arrival` and `started` in steps. The rest is the running rule's."""

    tenant: int
    prompt: int
    output: int
    arrival: int
    started: int = -1
    made: int = 0
    paid: int = 0
    charged: int = 0
    charged_ms: int = 0

    @property
    def service(self) -> int:
        """Received so far, in milli-tokens."""
        return policy.input_service(TokenCounts(prompt=self.prompt)) + policy.output_service(self.made)


class Rule(Protocol):
    """Who is next. `token` and `done` come for what was picked; `now_ms` is the server's time."""

    def enqueue(self, job: Job) -> None: ...

    def pick(self, now_ms: int) -> Job | None: ...

    def token(self, job: Job, now_ms: int) -> None: ...

    def done(self, job: Job, now_ms: int) -> None: ...


class Fcfs:
    """First come, first served."""

    def __init__(self) -> None:
        self._queue: deque[Job] = deque()

    def enqueue(self, job: Job) -> None:
        self._queue.append(job)

    def pick(self, now_ms: int) -> Job | None:
        return self._queue.popleft() if self._queue else None

    def token(self, job: Job, now_ms: int) -> None:
        """Nothing is counted."""

    def done(self, job: Job, now_ms: int) -> None:
        """Nothing is counted."""


class _ByTenant:
    """A queue for each tenant; `_counters` order those that wait."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[Job]] = {}
        self._counters: dict[int, int] = {}

    def enqueue(self, job: Job) -> None:
        if job.tenant not in self._queues:
            self._counters[job.tenant] = self._begin(job.tenant)
            self._queues[job.tenant] = deque()
        self._queues[job.tenant].append(job)

    def token(self, job: Job, now_ms: int) -> None:
        """Nothing is counted, unless the rule says so."""

    def done(self, job: Job, now_ms: int) -> None:
        """Nothing is counted, unless the rule says so."""

    def _begin(self, tenant: int) -> int:
        """The counter of a tenant that begins to wait."""
        return self._counters.get(tenant, 0)

    def _least(self) -> int | None:
        return min(self._queues, key=lambda tenant: (self._counters[tenant], tenant), default=None)

    def _take(self, tenant: int) -> Job:
        queue = self._queues[tenant]
        job = queue.popleft()
        if not queue:
            del self._queues[tenant]
        return job


class RoundRobin(_ByTenant):
    """The tenants in turn: who was served longest ago."""

    def __init__(self) -> None:
        super().__init__()
        self._turns = 0

    def pick(self, now_ms: int) -> Job | None:
        tenant = self._least()
        if tenant is None:
            return None
        self._turns += 1
        self._counters[tenant] = self._turns
        return self._take(tenant)


class Las(_ByTenant):
    """Least attained service, charged at the end of a request, fading; of equals, who waits longest."""

    def __init__(self) -> None:
        super().__init__()
        self._attained: dict[int, tuple[float, int]] = {}

    def pick(self, now_ms: int) -> Job | None:
        if not self._queues:
            return None

        def standing(tenant: int) -> tuple[float, int, int]:
            return self._now(tenant, now_ms), self._queues[tenant][0].arrival, tenant

        return self._take(min(self._queues, key=standing))

    def done(self, job: Job, now_ms: int) -> None:
        self._attained[job.tenant] = (self._now(job.tenant, now_ms) + job.service, now_ms)

    def _now(self, tenant: int, now_ms: int) -> float:
        service, at = self._attained.get(tenant, (0.0, now_ms))
        faded: float = service * 0.5 ** ((now_ms - at) / LAS_HALF_LIFE_MS)
        return faded


class Vtc(_ByTenant):
    """Charged for its prompt when it is picked and for every token when it is made."""

    def __init__(self) -> None:
        super().__init__()
        self._left_last = 0

    def _begin(self, tenant: int) -> int:
        others = [self._counters[other] for other in self._queues]
        return max(self._counters.get(tenant, 0), min(others, default=self._left_last))

    def pick(self, now_ms: int) -> Job | None:
        tenant = self._least()
        if tenant is None:
            return None
        job = self._take(tenant)
        if not self._queues:
            self._left_last = self._counters[tenant]
        self._counters[tenant] += job.service
        return job

    def token(self, job: Job, now_ms: int) -> None:
        self._counters[job.tenant] += policy.OUTPUT_MILLI


class Weir(_ByTenant):
    """Start-time fair queueing over the counter, paid as the queue does."""

    def __init__(self) -> None:
        super().__init__()
        self._clock = 0

    def _begin(self, tenant: int) -> int:
        return policy.lifted(self._counters.get(tenant, self._clock), self._clock)

    def pick(self, now_ms: int) -> Job | None:
        tenant = self._least()
        if tenant is None:
            return None
        job = self._take(tenant)
        self._clock = max(self._clock, self._counters[tenant])
        self._charge(job, job.service + policy.prepaid_output(job.output, 1))
        return job

    def token(self, job: Job, now_ms: int) -> None:
        due = job.made - job.charged >= policy.TICK_TOKENS or now_ms - job.charged_ms >= policy.TICK_MS
        if job.made > 1 and not due:
            return
        prepaid = policy.prepaid_output(job.output, 1)
        prompt = job.service - policy.output_service(job.made)
        self._charge(job, max(job.service, prompt + prepaid))
        job.charged, job.charged_ms = job.made, now_ms

    def done(self, job: Job, now_ms: int) -> None:
        self._charge(job, job.service)

    def _charge(self, job: Job, service: int) -> None:
        target = policy.virtual(service, WEIGHT)
        self._counters[job.tenant] += target - job.paid
        job.paid = target


RULES: dict[str, Callable[[], Rule]] = {
    "weir": Weir,
    "FCFS": Fcfs,
    "round robin": RoundRobin,
    "llm-d-like LAS": Las,
    "VTC per token": Vtc,
}


@dataclass(slots=True)
class Outcome:
    """What a run gave: service and waits by tenant, and the largest gap between two tenants that both waited.

    Service in milli-tokens, waits in steps; `busy` is the part of the places that was taken while anything waited.
    """

    service: dict[int, int] = field(default_factory=dict)
    waits: dict[int, list[int]] = field(default_factory=dict)
    gap: int = 0
    steps: int = 0
    busy: float = 0.0


@dataclass(slots=True)
class Server:
    """`places` at once, a step every `step_ms`. `again`: what a tenant asks next when a request of its own starts."""

    rule: Rule
    places: int
    step_ms: int
    again: Callable[[Job], Job | None] = lambda _: None
    _spans: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    _waiting: dict[int, int] = field(default_factory=dict)

    def run(self, arrivals: Sequence[Job], *, steps_max: int) -> Outcome:
        """Until all is served, or so many steps are over. `arrivals` are in the order of their time."""
        found = Outcome()
        running: list[Job] = []
        coming = deque(arrivals)
        taken = offered = 0
        for now in range(steps_max):
            while coming and coming[0].arrival <= now:
                self._enqueue(coming.popleft())
            self._start(running, found, now)
            if any(self._waiting.values()):
                taken, offered = taken + len(running), offered + self.places
            running = self._step(running, found, now)
            self._look(found)
            found.steps = now + 1
            if not running and not coming and not any(self._waiting.values()):
                break
        found.busy = taken / offered if offered else 1.0
        return found

    def _enqueue(self, job: Job) -> None:
        self._waiting[job.tenant] = self._waiting.get(job.tenant, 0) + 1
        self.rule.enqueue(job)

    def _start(self, running: list[Job], found: Outcome, now: int) -> None:
        while len(running) < self.places:
            job = self.rule.pick(now * self.step_ms)
            if job is None:
                return
            job.started = now
            running.append(job)
            self._waiting[job.tenant] -= 1
            found.waits.setdefault(job.tenant, []).append(now - job.arrival)
            found.service[job.tenant] = found.service.get(job.tenant, 0) + job.service
            following = self.again(job)
            if following is not None:
                following.arrival = now
                self._enqueue(following)

    def _step(self, running: list[Job], found: Outcome, now: int) -> list[Job]:
        left = []
        at = (now + 1) * self.step_ms
        for job in running:
            job.made += 1
            found.service[job.tenant] += policy.OUTPUT_MILLI
            self.rule.token(job, at)
            if job.made < job.output:
                left.append(job)
            else:
                self.rule.done(job, at)
        return left

    def _look(self, found: Outcome) -> None:
        """The largest difference of service over any stretch in which two tenants both waited all the time."""
        waiting = sorted(tenant for tenant, count in self._waiting.items() if count)
        spans: dict[tuple[int, int], tuple[int, int]] = {}
        for pair in combinations(waiting, 2):
            lead = found.service.get(pair[0], 0) - found.service.get(pair[1], 0)
            low, high = self._spans.get(pair, (lead, lead))
            low, high = min(low, lead), max(high, lead)
            spans[pair] = (low, high)
            found.gap = max(found.gap, high - low)
        self._spans = spans
