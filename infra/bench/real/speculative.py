"""Bench `speculative`: what does guessing tokens ahead give, and where does it lose? Real vLLM, with and without.

Called by `manage.py bench speculative`. Three engines run side by side and are asked in turns, one request at a time:
`ordinary`; `ngram`, which looks its own text up for what came after the same words before; `draft`, a second model that
guesses. No smaller model with the same tokenizer is here, so the draft is the model itself: nearly every guess is
right and each costs a whole step, which is the lower bound of what a draft gives. Workloads: `repetitive` (a row of
numbers to go on with), `chat`, `random` (words without sense at temperature 1).

Invariant: acceptance is the engine's own count, by position too; every engine gets the same requests.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from infra.bench.engine_metrics import read_metrics
from infra.bench.load import Answer
from infra.bench.output import Measure
from infra.bench.prompts import WORDS
from infra.bench.real.engine import RealEngine, chat, running
from infra.bench.stats import median

NAME = "speculative"
ORDINARY, NGRAM, DRAFT = "ordinary", "ngram", "draft"
METHODS = (ORDINARY, NGRAM, DRAFT)
SAME = 0.1  # a difference of so little is none on a machine that others use too
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
DRAFTS = "vllm:spec_decode_num_drafts_total"
_POSITION = re.compile(r'^vllm:spec_decode_num_accepted_tokens_per_pos_total\{.*position="(\d+)".*\} (\S+)$', re.M)
_QUESTIONS = (
    "What is a weir, and what is it good for?",
    "Why does bread rise?",
    "How do tides come about?",
    "Tell me about the city of Bruges.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes. `guesses`: tokens guessed at once."""

    requests: int = 3
    max_tokens: int = 64
    guesses: int = 4
    seed: int = 1

    @property
    def steps(self) -> int:
        return self.requests * len(self.workloads()) * len(METHODS)

    def workloads(self) -> dict[str, list[dict[str, Any]]]:
        """The requests of each, the same for every method."""
        source = random.Random(self.seed)  # noqa: S311 - repeatable, no secret
        number = range(self.requests)
        lost = [" ".join(source.choices(WORDS, k=40)) for _ in number]
        size = self.max_tokens
        return {
            "repetitive": [chat(f"{n + 1}, {n + 2}, {n + 3}, " * 30, max_tokens=size) for n in number],
            "chat": [chat(_QUESTIONS[n % len(_QUESTIONS)], max_tokens=size) for n in number],
            "random": [chat(text, max_tokens=size, temperature=1.0, seed=n) for n, text in enumerate(lost)],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Guesses:
    """The engine's own counters. `by_position[i]`: how often the guess at place i was accepted."""

    accepted: float
    drafted: float
    drafts: float
    by_position: Mapping[int, float]

    @classmethod
    def read(cls, metrics: str) -> Guesses:
        """All zero for an engine that does not guess."""
        sums = read_metrics(metrics)
        accepted, drafted, drafts = (sums.get(name, 0.0) for name in (ACCEPTED, DRAFTED, DRAFTS))
        places = {int(place): float(count) for place, count in _POSITION.findall(metrics)}
        return cls(accepted=accepted, drafted=drafted, drafts=drafts, by_position=places)

    def since(self, before: Guesses) -> Guesses:
        return Guesses(
            accepted=self.accepted - before.accepted,
            drafted=self.drafted - before.drafted,
            drafts=self.drafts - before.drafts,
            by_position={place: n - before.by_position.get(place, 0.0) for place, n in self.by_position.items()},
        )

    @property
    def rate(self) -> float:
        """Part of the guesses that was accepted; 0 without any."""
        return self.accepted / self.drafted if self.drafted else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One workload on one engine."""

    answers: list[Answer]
    guesses: Guesses

    @property
    def tokens_per_s(self) -> float:
        return sum(answer.completion_tokens for answer in self.answers) / sum(answer.total for answer in self.answers)

    @property
    def ttft_ms(self) -> float:
        return median([answer.ttft for answer in self.answers]) * 1_000

    @property
    def itl_ms(self) -> float:
        return fmean(answer.gap_per_token for answer in self.answers) * 1_000


@dataclass(slots=True, kw_only=True)
class Found:
    """`loads` by workload, then by method."""

    plan: Plan
    engine: list[tuple[str, str]]
    loads: dict[str, dict[str, Load]] = field(default_factory=dict)


async def run(*, plan: Plan, advance: Callable[[int], None]) -> Found:
    """Every workload on every engine, in turns. Raises EngineAway in a group, Refused, OSError."""
    async with _engines(plan) as engines:
        found = Found(plan=plan, engine=engines[ORDINARY].record_rows())
        for name, bodies in plan.workloads().items():
            before = {method: Guesses.read(await engine.metrics()) for method, engine in engines.items()}
            answers: dict[str, list[Answer]] = {method: [] for method in engines}
            for body in bodies:
                for method, engine in engines.items():
                    answers[method].append(await engine.ask(body))
                    advance(1)
            found.loads[name] = {
                method: Load(
                    answers=answers[method], guesses=Guesses.read(await engine.metrics()).since(before[method])
                )
                for method, engine in engines.items()
            }
    return found


@asynccontextmanager
async def _engines(plan: Plan) -> AsyncIterator[dict[str, RealEngine]]:
    """All at once: each meets the same moods of the machine, and one that is not asked costs next to nothing."""
    async with AsyncExitStack() as stack:
        engines = {ORDINARY: await stack.enter_async_context(running(ORDINARY, max_num_seqs=4))}
        model = engines[ORDINARY].model
        for method, config in (
            (NGRAM, {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}),
            (DRAFT, {"method": "draft_model", "model": str(model)}),
        ):
            whole = json.dumps({**config, "num_speculative_tokens": plan.guesses})
            started = running(method, max_num_seqs=4, flags=("--speculative-config", whole))
            engines[method] = await stack.enter_async_context(started)
        yield engines


def measures(found: Found) -> list[Measure]:
    """The peer is ordinary decoding of the same workload."""
    lines = []
    for workload, loads in found.loads.items():
        plain = loads[ORDINARY]
        for method, load in loads.items():
            case = {"method": method, "workload": workload}
            for metric, unit, value, peer in (
                ("tokens_per_s", "tokens/s", load.tokens_per_s, plain.tokens_per_s),
                ("ttft_p50_ms", "ms", load.ttft_ms, plain.ttft_ms),
                ("itl_mean_ms", "ms", load.itl_ms, plain.itl_ms),
            ):
                against: dict[str, Any] = {} if method == ORDINARY else {"peer": ORDINARY, "peer_value": peer}
                lines.append(Measure(bench=NAME, metric=metric, unit=unit, value=value, case=case, **against))
            if method == ORDINARY:
                continue
            rate = load.guesses.rate
            lines.append(Measure(bench=NAME, metric="acceptance_rate", unit="part", value=rate, case=case))
            for place, count in sorted(load.guesses.by_position.items()):
                part = count / load.guesses.drafts if load.guesses.drafts else 0.0
                at: dict[str, str | int | float] = {**case, "position": place}
                lines.append(Measure(bench=NAME, metric="accepted_at", unit="part", value=part, case=at))
    return lines


def record(found: Found) -> dict[str, list[tuple[str, str]]]:
    """What ran, and where guessing wins and loses by throughput."""
    plan = found.plan
    load = [
        ("offered", f"{plan.requests} requests of each workload, one at a time, {plan.max_tokens} tokens each"),
        ("guesses", f"{plan.guesses} at once; the draft is the model itself, as no smaller one is here"),
    ]
    return {"engine": found.engine, "load": load, "verdict": _verdict_rows(found)}


def _verdict_rows(found: Found) -> list[tuple[str, str]]:
    rows = []
    for workload, loads in found.loads.items():
        plain = loads[ORDINARY]
        for method, load in loads.items():
            if method == ORDINARY:
                continue
            ratio = load.tokens_per_s / plain.tokens_per_s
            word = "wins" if ratio > 1 + SAME else "LOSES" if ratio < 1 - SAME else "makes no difference"
            same = sum(one.text == other.text for one, other in zip(load.answers, plain.answers, strict=True))
            guesses = f"{load.guesses.accepted:.0f} of {load.guesses.drafted:.0f} guesses accepted"
            text = f"{word}: {ratio:.2f} of ordinary, {guesses}; {same} of {len(load.answers)} answers the same"
            rows.append((f"{method}, {workload}", text))
    return rows
