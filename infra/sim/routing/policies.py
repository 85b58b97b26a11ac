"""Who takes a request, decided at its arrival: the policies that push, as their projects describe them. Pure.

Called by `run`. Each sees the same: how many requests are in flight at each worker, what its cache is believed to hold
(exact, told at once), how full it is. None sees a future. "-like": rebuilt from the published rule, not their code.

- `RoundRobin`; `LeastLoaded`: fewest in flight; `TwoChoices`: of two drawn, the one with fewer in flight.
- `BestPrefix`: the longest match, drawn among equals (vLLM production-stack's prefix-aware rule).
- `SglangLike`: shortest queue for all when max - min > 64 and max > 1.5 min; else the best match over 0.3; else load.
- `AibrixLike`: least loaded when max - min > 8; else the best match among those with at most mean + 1 sigma.
- `LlmdLike`: 3 prefix + 2 queue + 2 free cache, each from 0 to 1; the highest.
- `CostRule`: no project's: the least (uncached tokens before it + 3 times its own uncached ones) / rate, with the time
  for a place when all are taken and 2 ms for each in flight. What the queue's pull could reach with measured rates.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from typing import Protocol

from infra.sim.routing.workers import Request, Worker

COST_OF_OWN = 3.0  # over 1, it prices what a cold prompt drives out of the cache
COST_OF_ONE = 0.002  # seconds for each request in flight
MEAN_OUTPUT = 150


class Push(Protocol):
    """`choose` is asked once for each request, in the order of arrival."""

    def choose(self, request: Request, workers: Sequence[Worker]) -> Worker: ...


def _load(worker: Worker) -> tuple[int, int]:
    return worker.bound, worker.number


def _match(request: Request, worker: Worker) -> int:
    return worker.index.match(request.blocks)


class RoundRobin:
    def __init__(self, seed: int) -> None:
        self._next = seed

    def choose(self, request: Request, workers: Sequence[Worker]) -> Worker:
        self._next += 1
        return workers[self._next % len(workers)]


class LeastLoaded:
    def __init__(self, seed: int) -> None:
        self._source = random.Random(seed)  # noqa: S311 - repeatable, no secret

    def choose(self, request: Request, workers: Sequence[Worker]) -> Worker:
        least = min(worker.bound for worker in workers)
        return self._source.choice([worker for worker in workers if worker.bound == least])


class TwoChoices(LeastLoaded):
    def choose(self, request: Request, workers: Sequence[Worker]) -> Worker:
        return min(self._source.sample(list(workers), min(2, len(workers))), key=_load)


class BestPrefix(LeastLoaded):
    def choose(self, request: Request, workers: Sequence[Worker]) -> Worker:
        best = max(_match(request, worker) for worker in workers)
        return self._source.choice([worker for worker in workers if _match(request, worker) == best])


class SglangLike:
    def __init__(self, seed: int) -> None:
        """Nothing is drawn."""

    def choose(self, request: Request, workers: Sequence[Worker]) -> Worker:
        loads = [worker.bound for worker in workers]
        best = max(workers, key=lambda worker: (_match(request, worker), -worker.bound, -worker.number))
        good = request.blocks and _match(request, best) / len(request.blocks) > 0.3
        if (max(loads) - min(loads) > 64 and max(loads) > 1.5 * min(loads)) or not good:
            return min(workers, key=_load)
        return best


class AibrixLike:
    def __init__(self, seed: int) -> None:
        """Nothing is drawn."""

    def choose(self, request: Request, workers: Sequence[Worker]) -> Worker:
        loads = [worker.bound for worker in workers]
        if max(loads) - min(loads) > 8:
            return min(workers, key=_load)
        most = statistics.fmean(loads) + statistics.pstdev(loads)
        calm = [worker for worker in workers if worker.bound <= most] or list(workers)
        best = max(_match(request, worker) for worker in calm)
        if best == 0:
            return min(workers, key=_load)
        return min((worker for worker in calm if _match(request, worker) == best), key=_load)


class LlmdLike:
    def __init__(self, seed: int) -> None:
        """Nothing is drawn."""

    def choose(self, request: Request, workers: Sequence[Worker]) -> Worker:
        queues = [len(worker.waiting) for worker in workers]
        low, spread = min(queues), max(max(queues) - min(queues), 1)
        blocks = max(len(request.blocks), 1)

        def score(worker: Worker) -> tuple[float, int, int]:
            queue = 1 - (len(worker.waiting) - low) / spread
            total = 3 * _match(request, worker) / blocks + 2 * queue + 2 * (1 - worker.usage)
            return total, -worker.bound, -worker.number

        return max(workers, key=score)


class CostRule:
    def __init__(self, seed: int) -> None:
        """Nothing is drawn."""

    def choose(self, request: Request, workers: Sequence[Worker]) -> Worker:
        def cost(worker: Worker) -> tuple[float, int]:
            model = worker.model
            own = request.prompt - request.matched(_match(request, worker))
            over = max(worker.bound - model.slots + 1, 0)
            place = over * model.decode_seconds(MEAN_OUTPUT, model.slots) / model.slots
            seconds = (worker.backlog + COST_OF_OWN * own) / model.prefill_tokens_per_s + place
            return seconds + COST_OF_ONE * worker.bound, worker.number

        return min(workers, key=cost)


PUSH: dict[str, Callable[[int], Push]] = {
    "round robin": RoundRobin,
    "best prefix": BestPrefix,
    "least loaded": LeastLoaded,
    "SGLang-like": SglangLike,
    "AIBrix-like": AibrixLike,
    "llm-d-like": LlmdLike,
    "two choices": TwoChoices,
    "cost rule": CostRule,
}
