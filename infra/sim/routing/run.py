"""One run: arrivals over workers under one policy, event by event, and what came of it. Pure.

Called by bench `routing` and its tests. Events are ordered by time, then by number. Invariant: the same arrivals, model
and seed give the same run; every request is served once.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

from contracts.tokens import TokenCounts
from fairqueue import policy as service
from infra.sim.routing.policies import PUSH, Push
from infra.sim.routing.pull import Pull
from infra.sim.routing.workers import EngineModel, Request, Worker, make_workers

OURS = "weir"
TWO_BOUNDS = "weir two bounds"
POLICIES = (OURS, TWO_BOUNDS, *PUSH)
CANDIDATES = frozenset({TWO_BOUNDS, "cost rule"})  # not what runs, and nobody's product: what could be
LOOK_SECONDS = 0.25


@dataclass(slots=True)
class Outcome:
    """Times to the first token in seconds, tokens, of what came after the warm-up; `gap` in milli-tokens, of all."""

    ttft: list[float] = field(default_factory=list)
    prompt: int = 0
    cached: int = 0
    output: int = 0
    seconds: float = 0.0
    gap: int = 0
    by_worker: list[int] = field(default_factory=list)

    @property
    def hit_rate(self) -> float:
        return self.cached / self.prompt if self.prompt else 0.0


def run(
    requests: Sequence[Request], *, policy: str, model: EngineModel, workers: int, seed: int, warm_up: int = 0
) -> Outcome:
    """Serve copies of `requests` (by time) under the policy of that name (POLICIES).

    The first `warm_up` requests fill the caches; they are served as all others and not counted.
    """
    block = requests[0].block_tokens
    pool = make_workers(workers, model, block)
    pull = Pull(workers=pool, two_bounds=policy == TWO_BOUNDS) if policy in (OURS, TWO_BOUNDS) else None
    push = None if pull is not None else PUSH[policy](seed)
    return _Run(pool, push, pull, warm_up).serve([_fresh(request) for request in requests])


def _fresh(one: Request) -> Request:
    return Request(
        number=one.number, at=one.at, tenant=one.tenant, prompt=one.prompt, output=one.output, blocks=one.blocks,
        after=one.after, block_tokens=one.block_tokens,
    )  # fmt: skip


class _Run:
    def __init__(self, workers: list[Worker], push: Push | None, pull: Pull | None, warm_up: int) -> None:
        self._warm_up = warm_up
        self._workers, self._push, self._pull = workers, push, pull
        self._events: list[tuple[float, int, str, Request | Worker | None]] = []
        self._counted = 0
        self._waiting: dict[int, int] = {}
        self._service: dict[int, int] = {}
        self._spans: dict[tuple[int, int], tuple[int, int]] = {}
        self._found = Outcome()

    def serve(self, requests: list[Request]) -> Outcome:
        for request in requests:
            self._at(request.at, "arrive", request)
        if self._pull is not None:
            self._pull.open()
        looked = 0.0
        now = 0.0
        while self._events:
            now, _, kind, subject = heapq.heappop(self._events)
            if now - looked >= LOOK_SECONDS:
                self._look()
                looked = now
            getattr(self, f"_{kind}")(subject, now)
        self._found.seconds = now
        self._found.by_worker = [sum(r.worker == worker.number for r in requests) for worker in self._workers]
        assert all(request.done >= 0 for request in requests), "a request was never served"
        return self._found

    def _at(self, when: float, kind: str, subject: Request | Worker | None) -> None:
        self._counted += 1
        heapq.heappush(self._events, (when, self._counted, kind, subject))

    def _arrive(self, request: Request, now: float) -> None:
        self._waiting[request.tenant] = self._waiting.get(request.tenant, 0) + 1
        if self._pull is not None:
            self._start(self._pull.arrive(request, now), now)
        else:
            assert self._push is not None
            worker = self._push.choose(request, self._workers)
            worker.bind(request)
            self._start([worker], now)
        self._plan_look()

    def _start(self, workers: Sequence[Worker], now: float) -> None:
        for worker in workers:
            request = worker.start_next(now)
            if request is not None:
                self._waiting[request.tenant] -= 1
                counts = TokenCounts(prompt=request.prompt, cached=request.cached)
                given = service.input_service(counts) + service.output_service(request.output)
                self._service[request.tenant] = self._service.get(request.tenant, 0) + given
                self._at(worker.prefill_ends, "prefilled", worker)

    def _prefilled(self, worker: Worker, now: float) -> None:
        request = worker.prefilled(now)
        found = self._found
        if request.number >= self._warm_up:
            found.ttft.append(now - request.at)
            found.prompt, found.cached = found.prompt + request.prompt, found.cached + request.cached
            found.output += request.output
        self._at(now + worker.model.decode_seconds(request.output, worker.running), "finished", request)
        if self._pull is not None:
            self._pull.first_token(request, now)
            self._start(self._pull.free(worker, now), now)
        self._start([worker], now)
        self._plan_look()

    def _finished(self, request: Request, now: float) -> None:
        worker = self._workers[request.worker]
        worker.finished(request, now)
        if self._pull is not None:
            self._pull.finished(request, now)
            self._start(self._pull.free(worker, now), now)
        self._start([worker], now)
        self._plan_look()

    def _plan_look(self) -> None:
        """A worker that was told to come again at a time does."""
        planned = None if self._pull is None else self._pull.next_look()
        if planned is not None:
            self._at(planned[0], "again", planned[1])

    def _again(self, worker: Worker, now: float) -> None:
        assert self._pull is not None
        planned = self._pull.next_look()
        if planned is None or planned[0] > now:
            return  # it looked meanwhile
        self._start(self._pull.free(planned[1], now), now)
        self._plan_look()

    def _look(self) -> None:
        """The largest difference over any stretch in which two tenants both had requests that had not begun."""
        waiting = sorted(tenant for tenant, count in self._waiting.items() if count)
        spans: dict[tuple[int, int], tuple[int, int]] = {}
        for pair in combinations(waiting, 2):
            lead = self._service.get(pair[0], 0) - self._service.get(pair[1], 0)
            low, high = self._spans.get(pair, (lead, lead))
            spans[pair] = (min(low, lead), max(high, lead))
            self._found.gap = max(self._found.gap, spans[pair][1] - spans[pair][0])
        self._spans = spans
