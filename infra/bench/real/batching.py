"""Bench `batching`: what does continuous batching give over static batching, by lengths of answers? Real vLLM.

Called by `manage.py bench batching`. The same requests on the same engine both ways, all there from the beginning:
`static` admits groups of as many as the engine has places and waits for the longest of each, `continuous` fills each
place as soon as it is free. Two rounds, in the order there and back, so that both meet the same moods of the machine.

Invariant: both ways serve the same prompts to the same lengths; a request's wait counts from the beginning.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from time import perf_counter
from typing import Any

from infra.bench.load import Answer
from infra.bench.output import Measure
from infra.bench.real.engine import RealEngine, chat, running
from infra.bench.stats import percentile

NAME = "batching"
STATIC, CONTINUOUS = "static", "continuous"
ORDER = (STATIC, CONTINUOUS, CONTINUOUS, STATIC)
Serve = Callable[[int], Coroutine[Any, Any, None]]
ONE_OF = 8  # requests of `few_long`


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes; answers in tokens."""

    requests: int = 16
    places: int = 4
    short: int = 8
    long: int = 64
    seed: int = 1

    @property
    def steps(self) -> int:
        return len(self.lengths()) * len(ORDER)

    def lengths(self) -> dict[str, list[int]]:
        """`even`: all alike. `spread`: anything between. `few_long`: one of eight is long, the others are short."""
        source = random.Random(self.seed)  # noqa: S311 - repeatable, no secret
        number = range(self.requests)
        few = [self.long if n % ONE_OF == 0 else self.short for n in number]
        source.shuffle(few)
        return {
            "even": [(self.short + self.long) // 2 for _ in number],
            "spread": [source.randint(self.short, self.long) for _ in number],
            "few_long": few,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One way on one distribution, once. Seconds; `waits`: from the beginning to each first token."""

    seconds: float
    places: int
    answers: Sequence[Answer]
    waits: Sequence[float]

    @property
    def tokens_per_s(self) -> float:
        return sum(answer.completion_tokens for answer in self.answers) / self.seconds

    @property
    def idle(self) -> float:
        """Part of the places' time in which no answer ran in them."""
        return 1 - sum(answer.total for answer in self.answers) / (self.seconds * self.places)


@dataclass(slots=True, kw_only=True)
class Found:
    """`loads` by distribution, then by way; one for each round."""

    plan: Plan
    engine: list[tuple[str, str]]
    loads: dict[str, dict[str, list[Load]]] = field(default_factory=dict)


async def run(*, plan: Plan, advance: Callable[[int], None]) -> Found:
    """Raises EngineAway in a group."""
    async with running(NAME, max_num_seqs=plan.places) as engine:
        found = Found(plan=plan, engine=engine.record_rows())
        for name, lengths in plan.lengths().items():
            found.loads[name] = {STATIC: [], CONTINUOUS: []}
            for way in ORDER:
                found.loads[name][way].append(await _serve(engine, lengths, places=plan.places, way=way))
                advance(1)
    return found


async def _serve(engine: RealEngine, lengths: Sequence[int], *, places: int, way: str) -> Load:
    began = perf_counter()
    answers: list[Answer] = []
    waits: list[float] = []

    async def one(index: int) -> None:
        asked = perf_counter()
        answers.append(await engine.ask(chat(f"Tell me about the number {index}.", max_tokens=lengths[index])))
        waits.append(asked - began + answers[-1].ttft)

    await (_in_groups if way == STATIC else _in_places)(one, len(lengths), places)
    return Load(seconds=perf_counter() - began, places=places, answers=answers, waits=waits)


async def _in_groups(one: Serve, count: int, places: int) -> None:
    for first in range(0, count, places):
        async with asyncio.TaskGroup() as group:
            for index in range(first, min(first + places, count)):
                group.create_task(one(index))


async def _in_places(one: Serve, count: int, places: int) -> None:
    waiting = iter(range(count))

    async def fill() -> None:
        for index in waiting:
            await one(index)

    async with asyncio.TaskGroup() as group:
        for _ in range(places):
            group.create_task(fill())


def measures(found: Found) -> list[Measure]:
    """Continuous, with static as its peer; means over the rounds."""
    lines = []
    for name, ways in found.loads.items():
        for metric, unit, of in (
            ("tokens_per_s", "tokens/s", lambda load: load.tokens_per_s),
            ("ttft_p50_ms", "ms", lambda load: percentile(load.waits, percent=50) * 1_000),
            ("ttft_p99_ms", "ms", lambda load: percentile(load.waits, percent=99) * 1_000),
            ("idle_slots", "part", lambda load: load.idle),
        ):
            ours, theirs = (fmean(map(of, ways[way])) for way in (CONTINUOUS, STATIC))
            case = {"lengths": name}
            lines.append(
                Measure(bench=NAME, metric=metric, unit=unit, value=ours, case=case, peer=STATIC, peer_value=theirs)
            )
    return lines


def record(found: Found) -> dict[str, list[tuple[str, str]]]:
    """What ran under which load."""
    plan = found.plan
    load = [
        ("offered", f"{plan.requests} requests at once, {plan.places} places, the same prompts both ways, 2 rounds")
    ]
    for name, lengths in plan.lengths().items():
        load.append((name, f"answers of {min(lengths)} to {max(lengths)} tokens, {sum(lengths)} in all"))
    return {"engine": found.engine, "load": load}
