"""Bench `slo`: the targets of the platform, met or missed, under a stated load on the machine at hand.

Called by `manage.py slo` and `manage.py bench slo`. A closed loop of streamed chats through the public API, as the demo
tenant with its guardrail policy. The peer of each number is its target.

Invariant: what is printed was measured; nothing is scaled to another machine. A day's conversations are the rate of
answers as measured, times a day, at one request each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from infra.bench.engine_metrics import Occupancy, watching
from infra.bench.load import Target, open_connections, run_closed_loop
from infra.bench.output import Measure
from infra.bench.prompts import make_prompt
from infra.bench.record import Load
from infra.bench.stats import percentile

NAME = "slo"
TARGET = "target"
DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    requests: int = 64
    concurrency: int = 8
    max_tokens: int = 64
    prompt_words: int = 60
    deadline: float = 300.0
    seed: int = 1

    @property
    def steps(self) -> int:
        return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    load: Load
    occupancy: Occupancy


async def run(*, platform: Target, engine: Target, plan: Plan, advance: Callable[[int], None]) -> Found:
    """The load, once; a few requests before it warm what is made at the first. Raises OSError."""
    prompts = [make_prompt(seed=plan.seed, index=n, words=plan.prompt_words) for n in range(plan.requests)]
    warm = [make_prompt(seed=plan.seed, index=-1 - n, words=plan.prompt_words) for n in range(plan.concurrency)]
    async with open_connections(platform, count=plan.concurrency) as connections:
        await run_closed_loop(connections, prompts=warm, max_tokens=4, deadline=plan.deadline)
        async with watching(engine) as occupancy:
            answers, seconds = await run_closed_loop(
                connections, prompts=prompts, max_tokens=plan.max_tokens, deadline=plan.deadline
            )
    advance(1)
    load = Load(name="load", answers=answers, seconds=seconds, concurrency=plan.concurrency)
    return Found(load=load, occupancy=occupancy)


def measures(found: Found) -> list[Measure]:
    """Each number with its target as peer. Raises ValueError where nothing was answered."""
    load = found.load
    good = [answer for answer in load.answers if not answer.failure]
    ttft = percentile([answer.ttft for answer in good], percent=99) * 1_000
    itl = percentile([gap for answer in good for gap in answer.gaps], percent=99) * 1_000
    case = {"concurrency": load.concurrency}
    return [
        Measure(bench=NAME, metric=metric, value=value, unit=unit, case=case, peer=TARGET, peer_value=target)
        for metric, value, unit, target in (
            ("ttft_p99_ms", ttft, "ms", 200.0),
            ("itl_p99_ms", itl, "ms", 25.0),
            ("tokens_per_s", load.output_tokens_per_second, "tokens/s", 50_000.0),
            ("conversations_per_day", len(good) / load.seconds * DAY_SECONDS, "conversations", 1e6),
        )
    ]


def is_met(measure: Measure) -> bool:
    """Times are to stay under their target, all else is to reach it."""
    assert measure.peer_value is not None
    if measure.unit == "ms":
        return measure.value < measure.peer_value
    return measure.value >= measure.peer_value


def verdict_rows(lines: list[Measure]) -> list[tuple[str, str]]:
    """Pass or miss, each."""
    rows = []
    for line in lines:
        word = "pass" if is_met(line) else "MISS"
        rows.append((line.metric, f"{word}: {line.value:,.0f} {line.unit}, target {line.peer_value:,.0f}"))
    return [*rows, ("evaluation logs a day", "not measured here: bytes of a log times a day's requests")]
