"""Bench `gateway`: the whole platform with all its features on against the LiteLLM proxy, before one instant upstream.

Called by `manage.py bench gateway`. Both get the same requests from the same client in turns, and both pass them to the
same mock of an OpenAI-compatible server, over HTTP (`bare_app`); it is asked directly too, so that what each adds is
known. Weir: keys, limits and budgets, prompt and output guardrails, fair queue, leases, token log, metering, billing
and evaluation logs, all durable. The proxy: a master key and one model, no database, no limits, no guardrails, no logs,
one process for each core. Three loads:

- whole answers, several connections: requests a second;
- streams, several connections: tokens a second;
- streams one at a time: what each adds to the time to the first token.

Invariant: an answer that is not whole, on any side, fails the run.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from infra.bench.load import Connection, Target, open_connections, run_closed_loop, stream_chat
from infra.bench.output import Measure
from infra.bench.prompts import make_prompt
from infra.bench.quiet import quiet
from infra.bench.servers import cpu_of
from infra.bench.stats import describe, median

NAME = "gateway"
PEER = "LiteLLM proxy"
AIMS = {"requests_per_s": 15.0, "stream_tokens_per_s": 20.0, "added_ttft_p50_ms": 0.25}
DEADLINE = 60.0
QUIET_SECONDS_MAX = 3.0

Case = dict[str, str | int | float]


class AnswerFailed(Exception):
    """A request failed or was refused; the text says whose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A round is `seconds` long on each side, or a little longer: no request is cut."""

    connections: int = 16
    seconds: float = 5.0
    rounds: int = 3
    alone: int = 60
    whole_tokens: int = 16
    stream_tokens: int = 64
    prompt_words: int = 40
    warmup: int = 16

    @property
    def steps(self) -> int:
        """How many loads the plan has, for the progress bar."""
        return 3 * (2 * (self.rounds + 1)) + self.alone


@dataclass(slots=True)
class Side:
    """A target, its processes by name, and all that was measured of it."""

    target: Target
    pids: Mapping[str, int]
    requests_per_s: list[float] = field(default_factory=list)
    tokens_per_s: list[float] = field(default_factory=list)
    ttft_ms: list[float] = field(default_factory=list)
    cpu: dict[str, dict[str, float]] = field(default_factory=dict)  # load → process → milliseconds a request


@dataclass(slots=True, kw_only=True)
class Found:
    """All of a whole run."""

    plan: Plan
    weir: Side
    peer: Side
    upstream: Side

    @property
    def sides(self) -> list[Side]:
        return [self.weir, self.peer, self.upstream]


async def run(*, weir: Side, peer: Side, upstream: Side, plan: Plan, advance: Callable[[int], None]) -> Found:
    """The whole plan. Raises AnswerFailed."""
    found = Found(plan=plan, weir=weir, peer=peer, upstream=upstream)
    for load in (_whole_round, _stream_round):
        for number in range(-1, plan.rounds):
            first = number % len(found.sides)
            for side in found.sides[first:] + found.sides[:first]:
                await quiet(seconds=QUIET_SECONDS_MAX)
                await load(side, plan, number=number)
                advance(1)
    await _alone(found, advance)
    return found


async def _whole_round(side: Side, plan: Plan, *, number: int) -> None:
    """As many whole answers as come. A negative round warms up."""
    done = 0
    until = _until(plan, number)
    async with open_connections(side.target, count=plan.connections) as connections:

        async def work(connection: Connection, lane: int) -> None:
            nonlocal done
            asked = 0
            while time.perf_counter() < until:
                await _whole(connection, plan, index=(number + 2) * 1_000_000 + lane * 10_000 + asked)
                asked += 1
            done += asked

        began, before = time.perf_counter(), _cpu(side)
        async with asyncio.TaskGroup() as tasks:
            for lane, connection in enumerate(connections):
                tasks.create_task(work(connection, lane))
        seconds = time.perf_counter() - began
    if number >= 0:
        side.requests_per_s.append(done / seconds)
        side.cpu["whole"] = _spent(side, before, done)


async def _stream_round(side: Side, plan: Plan, *, number: int) -> None:
    """Streams in waves until the time is over."""
    until, tokens, asked = _until(plan, number), 0, 0
    async with open_connections(side.target, count=plan.connections) as connections:
        began, before = time.perf_counter(), _cpu(side)
        while time.perf_counter() < until:
            prompts = [
                make_prompt(seed=5, index=(number + 2) * 100_000 + asked + i, words=plan.prompt_words)
                for i in range(plan.connections)
            ]
            answers, _ = await run_closed_loop(
                connections, prompts=prompts, max_tokens=plan.stream_tokens, deadline=DEADLINE
            )
            for answer in answers:
                if answer.failure or answer.completion_tokens != plan.stream_tokens:
                    raise AnswerFailed(f"{side.target.name}: {answer.failure or 'tokens are missing'}")
                tokens += answer.completion_tokens
            asked += len(answers)
        seconds = time.perf_counter() - began
    if number >= 0:
        side.tokens_per_s.append(tokens / seconds)
        side.cpu["stream"] = _spent(side, before, asked)


async def _alone(found: Found, advance: Callable[[int], None]) -> None:
    """One short stream at a time, on each side in turn."""
    plan = found.plan
    async with (
        open_connections(found.weir.target, count=1) as ours,
        open_connections(found.peer.target, count=1) as theirs,
        open_connections(found.upstream.target, count=1) as bare,
    ):
        lanes = [(found.weir, ours[0]), (found.peer, theirs[0]), (found.upstream, bare[0])]
        for index in range(-5, plan.alone):
            first = index % len(lanes)
            for side, connection in lanes[first:] + lanes[:first]:
                prompt = make_prompt(seed=6, index=index + 5, words=plan.prompt_words)
                answer = await stream_chat(connection, prompt=prompt, max_tokens=4, deadline=DEADLINE)
                if answer.failure:
                    raise AnswerFailed(f"{side.target.name}: {answer.failure}")
                if index >= 0:
                    side.ttft_ms.append(answer.ttft * 1_000)
            if index >= 0:
                advance(1)


async def _whole(connection: Connection, plan: Plan, *, index: int) -> None:
    """One whole answer. Raises AnswerFailed."""
    target = connection.target
    body = {
        "model": target.model,
        "messages": [{"role": "user", "content": make_prompt(seed=4, index=index, words=plan.prompt_words)}],
        "max_tokens": plan.whole_tokens,
        "temperature": 0,
    }
    request = target.request(method="POST", path="/v1/chat/completions", body=json.dumps(body).encode())
    try:
        _, head, parts = await connection.exchange(request, deadline=DEADLINE)
    except (OSError, ValueError, TimeoutError) as error:
        raise AnswerFailed(f"{target.name}: {type(error).__name__}: {error}") from error
    said = b"".join(part.data for part in parts)
    if head.status != 200 or b'"usage"' not in said:
        raise AnswerFailed(f"{target.name}: status {head.status}: {said[-300:]!r}")


def _until(plan: Plan, number: int) -> float:
    return time.perf_counter() + (plan.seconds if number >= 0 else 1.0)


def _cpu(side: Side) -> dict[str, float]:
    return cpu_of({**side.pids, "client": os.getpid()})


def _spent(side: Side, before: Mapping[str, float], requests: int) -> dict[str, float]:
    return {name: (now - before[name]) * 1_000 / requests for name, now in _cpu(side).items() if name in before}


def measures(found: Found) -> list[Measure]:
    """The lines of a whole run. Raises ValueError when nothing was measured."""
    plan = found.plan
    bare = median(found.upstream.ttft_ms)
    added = [median(side.ttft_ms) - bare for side in (found.weir, found.peer)]
    rows: list[tuple[Case, str, str, list[float], list[float]]] = [
        (
            {"connections": plan.connections, "tokens": plan.whole_tokens},
            *("requests_per_s", "1/s", found.weir.requests_per_s, found.peer.requests_per_s),
        ),
        (
            {"connections": plan.connections, "tokens": plan.stream_tokens},
            *("stream_tokens_per_s", "tokens/s", found.weir.tokens_per_s, found.peer.tokens_per_s),
        ),
        ({"connections": 1}, "added_ttft_p50_ms", "ms", added[:1], added[1:]),
    ]
    return [
        Measure(
            bench=NAME, case=case, metric=metric, value=median(ours), unit=unit, peer=PEER, peer_value=median(theirs)
        )
        for case, metric, unit, ours, theirs in rows
    ]


def record_rows(side: Side) -> list[tuple[str, str]]:
    """The spread of what was measured on one side, and what a request cost each process."""
    rows = [
        ("whole answers", describe(side.requests_per_s, unit="1/s")),
        ("streams", describe(side.tokens_per_s, unit="tokens/s", digits=0)),
        ("first token, alone", describe(side.ttft_ms, unit="ms", digits=2)),
    ]
    for load, spent in side.cpu.items():
        parts = ", ".join(f"{name} {ms:.2f}" for name, ms in spent.items())
        rows.append((f"processor, {load}", f"{parts} ms a request"))
    return rows


def verdict_rows(lines: Sequence[Measure]) -> list[tuple[str, str]]:
    """Aims against what was seen, in words."""
    rows = []
    for line in lines:
        aim, ratio = AIMS[line.metric], line.ratio
        if ratio is None:
            continue
        met = ratio <= aim if line.metric == "added_ttft_p50_ms" else ratio >= aim
        rows.append((line.metric, f"{ratio:.3f} of the proxy's, aim {aim:g}: {'met' if met else 'missed'}"))
    return rows
