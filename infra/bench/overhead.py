"""Bench `overhead`: what the platform adds to its engine. The same prompts to the engine directly and through Weir.

Called by `manage.py bench overhead`. Both sides stream over the same machine from the same load generator; the engine
is the very one the platform uses, past everything, on its Unix socket. Two parts, both interleaved so that a change of
the machine's mood meets both sides:

- latency: one request open at a time, in threes: the engine, the platform as the demo tenant with its guardrail policy,
  and the platform as a tenant without one (an output rule may have to wait for the next token before it lets a word
  go, which is the rule's price and not the path's). Which goes first rotates.
- throughput: rounds of many requests, as many open as stated, in threes alike. The demo tenant also has its prompts and
  answers kept as evaluation logs; those are uploaded when the serving leaves time, and every round waits for that.

No prompt is seen twice by one side, and the platform's cache salt keeps the two sides' caches apart, so both compute
every prompt from cold. Answers are compared: the same work was done when texts are equal (temperature 0).

Invariant: any request that fails or is refused fails the run; a number is never made from what happened to succeed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from infra.bench.engine_metrics import Occupancy, watching
from infra.bench.load import Answer, Connection, Target, open_connections, run_closed_loop, stream_chat
from infra.bench.output import Measure
from infra.bench.prompts import make_prompt
from infra.bench.quiet import quiet
from infra.bench.record import Load
from infra.bench.stats import bootstrap_interval, percentile

NAME = "overhead"
QUIET_SECONDS_MAX = 3.0
TARGETS = {"added_ttft_p50_ms": 8.0, "added_ttft_p99_ms": 25.0, "throughput": 0.97}
PEER = "the engine directly"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do. `requests` threes one at a time, then `rounds` rounds of `concurrency * waves` requests a side.

    What warms both sides up (`warmup` requests alone, one wave of the crowd) is not measured. Requests alone end after
    `alone_tokens`: what they are for is the first.
    """

    requests: int = 100
    concurrency: int = 8
    rounds: int = 5
    waves: int = 2
    prompt_words: int = 40
    max_tokens: int = 32
    alone_tokens: int = 4
    warmup: int = 3
    deadline: float = 60.0
    seed: int = 1

    @property
    def steps(self) -> int:
        """How many requests the whole plan sends, for the progress bar."""
        crowd = self.concurrency * (1 + self.rounds * self.waves)
        return 3 * (self.warmup + self.requests + crowd)


@dataclass(slots=True)
class Side:
    """One target and all it answered."""

    target: Target
    alone: list[Answer] = field(default_factory=list)
    alone_seconds: float = 0.0
    rounds: list[Load] = field(default_factory=list)

    @property
    def ttft_ms(self) -> list[float]:
        return [answer.ttft * 1_000 for answer in self.alone]

    @property
    def gaps_ms(self) -> list[float]:
        return [gap * 1_000 for answer in self.alone for gap in answer.gaps]

    @property
    def tokens_per_second(self) -> float:
        """The median round."""
        return statistics.median(load.output_tokens_per_second for load in self.rounds)

    def loads(self, plan: Plan) -> list[Load]:
        """For the record: the requests sent alone, and all rounds as one where there were any."""
        crowd = [answer for load in self.rounds for answer in load.answers]
        seconds = sum(load.seconds for load in self.rounds)
        alone = Load(name="one at a time", answers=self.alone, seconds=self.alone_seconds, concurrency=1)
        rounds = Load(name="all rounds", answers=crowd, seconds=seconds, concurrency=plan.concurrency)
        return [alone, rounds] if self.rounds else [alone]


@dataclass(slots=True)
class Comparison:
    """All sides of a whole run. `bare`: the platform as a tenant without a guardrail policy and evaluation logs."""

    plan: Plan
    direct: Side
    weir: Side
    bare: Side
    occupancy: Occupancy = field(default_factory=Occupancy)

    def failures(self) -> list[str]:
        """Every request that did not end well, by side."""
        return [
            f"{side.target.name}: {answer.failure}"
            for side in (self.direct, self.weir, self.bare)
            for answer in [*side.alone, *(item for load in side.rounds for item in load.answers)]
            if answer.failure
        ]

    def unequal(self) -> int:
        """Answers to requests sent alone whose text or completion count is not the engine's."""
        return sum(
            (ours.text, ours.completion_tokens) != (theirs.text, theirs.completion_tokens)
            for side in (self.weir, self.bare)
            for ours, theirs in zip(side.alone, self.direct.alone, strict=True)
        )

    def interval_ms(self, side: Side, *, percent: float) -> tuple[float, float]:
        """A 95 % interval of the time that `side` adds to the first token at this percentile, resampling pairs."""
        pairs = list(zip(side.ttft_ms, self.direct.ttft_ms, strict=True))

        def added(drawn: Sequence[tuple[float, float]]) -> float:
            ours, theirs = zip(*drawn, strict=True)
            return percentile(ours, percent=percent) - percentile(theirs, percent=percent)

        return bootstrap_interval(pairs, statistic=added)


async def run(*, direct: Target, weir: Target, bare: Target, plan: Plan, advance: Callable[[int], None]) -> Comparison:
    """The whole plan. `advance` is told of every request that has ended. Raises nothing for a failed request."""
    found = Comparison(plan, Side(direct), Side(weir), Side(bare))
    async with (
        open_connections(direct, count=plan.concurrency) as to_direct,
        open_connections(weir, count=plan.concurrency) as to_weir,
        open_connections(bare, count=plan.concurrency) as to_bare,
        watching(direct) as found.occupancy,
    ):
        lanes = [(found.direct, to_direct), (found.weir, to_weir), (found.bare, to_bare)]
        for index in range(plan.warmup):
            for _, connections in lanes:
                await _one(connections[0], plan, index=-1 - index)
                advance(1)
        for _, connections in lanes:
            await _round(connections, plan, index=-1, waves=1)
            advance(plan.concurrency)
        for index in range(plan.requests):
            first = index % len(lanes)
            for side, connections in lanes[first:] + lanes[:first]:
                answer = await _one(connections[0], plan, index=index)
                side.alone.append(answer)
                side.alone_seconds += answer.total
                advance(1)
        for index in range(plan.rounds):
            first = index % len(lanes)
            for side, connections in lanes[first:] + lanes[:first]:
                await quiet(seconds=QUIET_SECONDS_MAX)
                side.rounds.append(await _round(connections, plan, index=index, waves=plan.waves))
                advance(plan.concurrency * plan.waves)
    return found


async def _one(connection: Connection, plan: Plan, *, index: int) -> Answer:
    prompt = make_prompt(seed=plan.seed, index=index, words=plan.prompt_words)
    return await stream_chat(connection, prompt=prompt, max_tokens=plan.alone_tokens, deadline=plan.deadline)


async def _round(connections: Sequence[Connection], plan: Plan, *, index: int, waves: int) -> Load:
    count = plan.concurrency * waves
    first = plan.requests + (index + 1) * plan.concurrency * plan.waves
    prompts = [make_prompt(seed=plan.seed, index=first + number, words=plan.prompt_words) for number in range(count)]
    answers, seconds = await run_closed_loop(
        connections, prompts=prompts, max_tokens=plan.max_tokens, deadline=plan.deadline
    )
    return Load(name=f"round {index}", answers=answers, seconds=seconds, concurrency=plan.concurrency)


def measures(found: Comparison, *, engine: str) -> list[Measure]:
    """The lines of a run without failures. Raises ValueError when nothing was measured."""
    plan = found.plan
    lines = [*_latency(found, found.weir, engine=engine), *_latency(found, found.bare, engine=engine)]
    lines += [*_throughput(found, found.weir, engine=engine), *_throughput(found, found.bare, engine=engine)]
    alone: dict[str, str | int | float] = {"engine": engine, "concurrency": 1, "requests": plan.requests}
    lines.append(Measure(bench=NAME, case=alone, metric="unequal_answers", value=found.unequal(), unit="answers"))
    return lines


def _throughput(found: Comparison, side: Side, *, engine: str) -> Iterator[Measure]:
    """Tokens a second of the median round, and their ratio to the engine's own."""
    plan = found.plan
    case: dict[str, str | int | float] = {
        "engine": engine,
        "guard": "policy" if side is found.weir else "none",
        "concurrency": plan.concurrency,
        "requests": plan.concurrency * plan.waves * plan.rounds,
    }
    mine, peer = side.tokens_per_second, found.direct.tokens_per_second
    for metric, value, unit, beside in (
        ("output_tokens_per_second", mine, "tokens/s", peer),
        ("throughput", mine / peer, "ratio", 1.0),
    ):
        yield Measure(bench=NAME, case=case, metric=metric, value=value, unit=unit, peer=PEER, peer_value=beside)


def _latency(found: Comparison, side: Side, *, engine: str) -> Iterator[Measure]:
    """What one side adds to the engine, at the middle and at the tail."""
    case: dict[str, str | int | float] = {
        "engine": engine,
        "guard": "policy" if side is found.weir else "none",
        "concurrency": 1,
        "requests": found.plan.requests,
    }
    for name, ours, theirs in (
        ("ttft", side.ttft_ms, found.direct.ttft_ms),
        ("itl", side.gaps_ms, found.direct.gaps_ms),
    ):
        for percent in (50, 99):
            mine, peer = percentile(ours, percent=percent), percentile(theirs, percent=percent)
            yield Measure(
                bench=NAME,
                case=case,
                metric=f"added_{name}_p{percent}_ms",
                value=mine - peer,
                unit="ms",
                peer=PEER,
                peer_value=peer,
                whole=mine,
            )


def verdict_rows(found: Comparison, lines: Sequence[Measure]) -> list[tuple[str, str]]:
    """Aims against what was seen, in words."""
    rows: list[tuple[str, str]] = []
    for side, guard in ((found.weir, "with the policy"), (found.bare, "without a policy")):
        for percent in (50, 99):
            low, high = found.interval_ms(side, percent=percent)
            rows.append(
                (f"added at p{percent} {guard}", f"95 % of resamplings of the pairs: {low:.2f} to {high:.2f} ms")
            )
    for line in lines:
        aim = TARGETS.get(line.metric)
        if aim is None:
            continue
        met = line.value >= aim if line.metric == "throughput" else line.value <= aim
        guard = f" guard={line.case['guard']}" if "guard" in line.case else ""
        rows.append((line.metric + guard, f"{line.value:.3f}, aim {aim:g}: {'met' if met else 'missed'}"))
    return rows
