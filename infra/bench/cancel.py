"""Bench `cancel`: how long the engine still works for a client that has gone. Called by `manage.py bench cancel`.

A client asks for a long stream, hears its beginning, and drops the connection; the clock runs from there until the
engine itself reports that it runs nothing (its gauge is asked again and again; what one look takes is in both sides).
In turns: through the platform, and on the engine's own socket, past everything. Which goes first alternates.

Invariant: a client counts only when the engine ran its request as it left; any other end fails the run.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from infra.bench.engine_metrics import RUNNING, read_metrics
from infra.bench.load import Connection, Target, get_text
from infra.bench.output import Measure
from infra.bench.prompts import make_prompt
from infra.bench.stats import percentile

NAME = "cancel"
AIM_MS = 1_000.0
PEER = "the engine directly"
_LOOK_SECONDS = 0.002


class NotFreed(Exception):
    """A client's request did not run, or the engine was not free of it in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`requests` clients a side leave, after one that is not counted; each would have had `max_tokens` tokens."""

    requests: int = 40
    max_tokens: int = 1_000
    prompt_words: int = 40
    deadline: float = 30.0
    seed: int = 1

    @property
    def steps(self) -> int:
        """How many clients leave, for the progress bar."""
        return 2 * (1 + self.requests)


@dataclass(slots=True)
class Comparison:
    """Milliseconds from each client's leave to a free engine."""

    plan: Plan
    direct: list[float] = field(default_factory=list)
    weir: list[float] = field(default_factory=list)


async def run(*, engine: Target, weir: Target, plan: Plan, advance: Callable[[int], None]) -> Comparison:
    """The whole plan; `advance` is told of every client that left. Raises NotFreed, OSError, Refused."""
    found = Comparison(plan)
    lanes = [(engine, found.direct), (weir, found.weir)]
    for index in range(-1, plan.requests):
        for target, times in lanes if index % 2 else reversed(lanes):
            freed = await _leave(target, engine, plan, index=index)
            if index >= 0:
                times.append(freed)
            advance(1)
    return found


async def _leave(target: Target, engine: Target, plan: Plan, *, index: int) -> float:
    prompt = make_prompt(seed=plan.seed, index=index, words=plan.prompt_words)
    body = {
        "model": target.model, "messages": [{"role": "user", "content": prompt}], "max_tokens": plan.max_tokens,
        "ignore_eos": True, "temperature": 0, "stream": True,
    }  # fmt: skip
    request = target.request(method="POST", path="/v1/chat/completions", body=json.dumps(body).encode())
    connection = Connection(target)
    try:
        async with asyncio.timeout(plan.deadline), asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(connection.exchange(request, deadline=plan.deadline))
            while not (connection.has_heard and await _runs(engine)):
                if asking.done():
                    raise NotFreed(f"{target.name}: the answer ended before its client left: {asking.result()[1]}")
                await asyncio.sleep(_LOOK_SECONDS)
            left = perf_counter()
            asking.cancel()
        async with asyncio.timeout(plan.deadline):
            while await _runs(engine):  # noqa: ASYNC110 - an engine tells of its end in no other way
                await asyncio.sleep(_LOOK_SECONDS)
    except TimeoutError as error:
        raise NotFreed(f"{target.name}: the engine was not free within {plan.deadline:.0f} s") from error
    return (perf_counter() - left) * 1_000


async def _runs(engine: Target) -> bool:
    return read_metrics((await get_text(engine, "/metrics")).decode()).get(RUNNING, 0.0) > 0


def measures(found: Comparison, *, engine: str) -> list[Measure]:
    """The lines of a whole run. Raises ValueError when nothing was measured."""
    case: dict[str, str | int | float] = {"engine": engine, "clients": len(found.weir)}
    return [
        Measure(
            bench=NAME,
            case=case,
            metric=f"freed_{name}_ms",
            value=percentile(found.weir, percent=percent),
            unit="ms",
            peer=PEER,
            peer_value=percentile(found.direct, percent=percent),
        )
        for name, percent in (("p50", 50), ("p99", 99), ("max", 100))
    ]


def too_slow(lines: Sequence[Measure]) -> str:
    """What is wrong where a client was worked for longer than is promised, else nothing."""
    (slowest,) = (line.value for line in lines if line.metric == "freed_max_ms")
    return "" if slowest <= AIM_MS else f"a client that had gone was worked for {slowest:.0f} ms: over {AIM_MS:.0f}"
