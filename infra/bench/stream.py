"""Bench `stream`: what the way of a token costs: worker → Valkey → gateway → client, with hundreds of streams open.

Called by `manage.py bench stream`. Real processes on a private platform; the worker is the production one with a
simulated engine inside it (`inline_engine`), so that no engine's cost is measured. The peer is a bare ASGI application
under uvicorn that sends the very bytes of Weir's answers to the same client in the same run, in turns with Weir.
Two loads for each number of streams:

- flat out: every stream as fast as it comes, for tokens a second;
- paced: every stream at the pace of a reader, for the time between tokens.

Weir's streams begin at a rate that one gateway admits (`STARTS_PER_S`); the peer's all at once. A burst of a thousand
would be a measure of admission. What the beginning takes is in the time, so it is Weir's loss.

The client is this process. What it, and every other process, had of the processor is in the record: a client that had a
core to itself would have been measured instead.

Invariant: nothing is read while the clock runs, and an answer that is not whole fails the run.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.bench.load import Connection, Target, open_connections, read_answer
from infra.bench.output import Measure
from infra.bench.prompts import make_prompt
from infra.bench.servers import cpu_of
from infra.bench.sse import Head, Part, read_body
from infra.bench.stats import describe, median, percentile

NAME = "stream"
PEER = "bare ASGI application"
RATIO_AIM = 0.5
TOKENS_AIM = 50_000.0
AIMED_STREAMS = 100
DEADLINE = 90.0
STARTS_PER_S = 250.0
AT_ONCE = 100  # so many begin together on both sides
_PROMPT_WORDS = 20


class StreamFailed(Exception):
    """An answer did not come whole; the text says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`tokens` of each answer by number of streams, flat out; `pace` tokens a second for `paced_tokens` otherwise."""

    tokens: Mapping[int, int] = field(default_factory=lambda: {1: 4_000, 10: 3_000, 100: 1_500, 1_000: 300})
    pace: int = 20
    paced_tokens: int = 80
    rounds: int = 3

    @property
    def steps(self) -> int:
        """How many loads the plan has, for the progress bar."""
        return len(self.tokens) * 2 * (self.rounds + 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One load and what came of it. Gaps between events with text in seconds; processor seconds by process."""

    streams: int
    tokens: int
    events: int
    bytes: int
    seconds: float
    gaps: Sequence[float]
    cpu: Mapping[str, float]

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


@dataclass(slots=True, kw_only=True)
class Side:
    """A target, and the processes behind it by name."""

    target: Target
    pids: Mapping[str, int]
    starts_per_s: float | None = None  # None: all at once
    flat_out: dict[int, list[Load]] = field(default_factory=dict)
    paced: dict[int, Load] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Found:
    """All of a whole run."""

    plan: Plan
    weir: Side
    peer: Side
    broken: dict[int, str] = field(default_factory=dict)  # number of streams → why it was not measured

    @property
    def whole(self) -> list[int]:
        """The numbers of streams that were measured."""
        return [streams for streams in self.plan.tokens if streams not in self.broken]


async def run(*, weir: Side, peer: Side, events: Path, plan: Plan, advance: Callable[[int], None]) -> Found:
    """The whole plan. `events`: where the peer looks for the answers it is to send.

    A number of streams at which an answer broke is left out of the measures, and told in `broken`.
    """
    found = Found(plan=plan, weir=weir, peer=peer)
    for streams, tokens in plan.tokens.items():
        try:
            for length in (tokens, plan.paced_tokens):
                _keep(events / f"{length}.events", await _recorded(weir.target, tokens=length))
            await _loads(found, streams, advance)
        except StreamFailed as error:
            found.broken[streams] = str(error)
    return found


async def _loads(found: Found, streams: int, advance: Callable[[int], None]) -> None:
    """All loads with so many streams. Raises StreamFailed."""
    plan, tokens = found.plan, found.plan.tokens[streams]
    async with (
        open_connections(found.weir.target, count=streams) as ours,
        open_connections(found.peer.target, count=streams) as theirs,
    ):
        lanes = [(found.weir, ours), (found.peer, theirs)]
        for number in range(-1, plan.rounds):  # the first warms up
            for side, connections in lanes if number % 2 else lanes[::-1]:
                load = await _load(side, connections, tokens=tokens if number >= 0 else 20, pace=0)
                if number >= 0:
                    side.flat_out.setdefault(streams, []).append(load)
                advance(1)
        for side, connections in lanes:
            side.paced[streams] = await _load(side, connections, tokens=plan.paced_tokens, pace=plan.pace)
            advance(1)


async def _recorded(target: Target, *, tokens: int) -> bytes:
    """One answer of Weir's, byte for byte, for the peer to send."""
    async with open_connections(target, count=1) as (connection,):
        [(_, head, parts)] = await _exchange([connection], tokens=tokens, pace=0)
    return b"".join(part.data for part in read_body(parts, head=head))


def _keep(path: Path, body: bytes) -> None:
    path.write_bytes(body)


async def _exchange(
    connections: Sequence[Connection], *, tokens: int, pace: int, starts_per_s: float | None = None
) -> list[tuple[float, Head, list[Part]]]:
    """The same request on every connection. Raises StreamFailed."""
    asked = [_request(connection.target, tokens=tokens, pace=pace, index=i) for i, connection in enumerate(connections)]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(
                    _begin(connection, request, after=max(i - AT_ONCE, 0) / starts_per_s if starts_per_s else 0.0)
                )
                for i, (connection, request) in enumerate(zip(connections, asked, strict=True))
            ]
    except* (OSError, ValueError, TimeoutError) as failures:
        first = failures.exceptions[0]
        raise StreamFailed(f"{len(failures.exceptions)} streams broke, the first: {first!r}") from failures
    return [task.result() for task in tasks]


async def _begin(connection: Connection, request: bytes, *, after: float) -> tuple[float, Head, list[Part]]:
    if after:
        await asyncio.sleep(after)
    return await connection.exchange(request, deadline=DEADLINE)


def _request(target: Target, *, tokens: int, pace: int, index: int) -> bytes:
    body: dict[str, Any] = {
        "model": target.model,
        "messages": [{"role": "user", "content": make_prompt(seed=3, index=index, words=_PROMPT_WORDS)}],
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if pace:
        body["seed"] = pace
    return target.request(method="POST", path="/v1/chat/completions", body=json.dumps(body).encode())


async def _load(side: Side, connections: Sequence[Connection], *, tokens: int, pace: int) -> Load:
    pids = {**side.pids, "client": os.getpid()}
    before = cpu_of(pids)
    began = time.perf_counter()
    done = await _exchange(connections, tokens=tokens, pace=pace, starts_per_s=side.starts_per_s)
    seconds = time.perf_counter() - began
    cpu = {name: now - before[name] for name, now in cpu_of(pids).items() if name in before}
    answers = [read_answer(written=written, head=head, parts=parts) for written, head, parts in done]
    wrong = [
        answer.failure or "tokens are missing"
        for answer in answers
        if answer.failure or answer.completion_tokens != tokens
    ]
    if wrong:
        raise StreamFailed(
            f"{side.target.name}: {len(wrong)} of {len(answers)} answers not whole, the first: {wrong[0]}"
        )
    return Load(
        streams=len(connections),
        tokens=sum(answer.completion_tokens for answer in answers),
        events=sum(len(answer.token_times) for answer in answers),
        bytes=sum(len(part.data) for _, _, parts in done for part in parts),
        seconds=seconds,
        gaps=[gap for answer in answers for gap in answer.gaps],
        cpu=cpu,
    )


def measures(found: Found) -> list[Measure]:
    """The lines of a whole run. Raises ValueError when nothing was measured."""
    lines = []
    for streams in found.whole:
        ours, theirs = (median([load.rate for load in side.flat_out[streams]]) for side in (found.weir, found.peer))
        lines.append(
            Measure(
                bench=NAME, case={"streams": streams}, metric="tokens_per_s", value=ours, unit="tokens/s",
                peer=PEER, peer_value=theirs,
            )
        )  # fmt: skip
        for pace in ("none", found.plan.pace):
            gaps = [_p99_ms(side, streams, paced=pace != "none") for side in (found.weir, found.peer)]
            lines.append(
                Measure(
                    bench=NAME, case={"streams": streams, "pace": pace}, metric="itl_p99_ms", value=gaps[0], unit="ms",
                    peer=PEER, peer_value=gaps[1],
                )
            )  # fmt: skip
    return lines


def _p99_ms(side: Side, streams: int, *, paced: bool) -> float:
    loads = [side.paced[streams]] if paced else side.flat_out[streams]
    return percentile([gap * 1_000 for load in loads for gap in load.gaps], percent=99)


def record_rows(side: Side) -> list[tuple[str, str]]:
    """What each load was, and what each process had of the processor for it."""
    rows = []
    for streams, loads in side.flat_out.items():
        rows.append((f"{streams} streams", describe([load.rate for load in loads], unit="tokens/s", digits=0)))
        last = loads[-1]
        rows.append(("· an answer", f"{last.tokens // streams} tokens, {last.bytes / last.tokens:.0f} bytes a token"))
        rows.append(("· processor", _cpu_text(last)))
        paced = side.paced.get(streams)
        if paced is None:
            continue
        rows.append(("· paced", f"{paced.rate:.0f} tokens/s; {_cpu_text(paced)}"))
        rows.append(("· · between tokens", describe([gap * 1_000 for gap in paced.gaps], unit="ms")))
    return rows


def _cpu_text(load: Load) -> str:
    """Cores that each process had on average, and its microseconds for a token."""
    return ", ".join(
        f"{name} {seconds / load.seconds:.2f} cores ({seconds * 1e6 / load.tokens:.1f} µs a token)"
        for name, seconds in load.cpu.items()
    )


def verdict_rows(lines: Sequence[Measure]) -> list[tuple[str, str]]:
    """Aims against what was seen, in words."""
    rows = []
    for line in lines:
        if line.metric != "tokens_per_s" or line.case["streams"] != AIMED_STREAMS or line.ratio is None:
            continue
        met = "met" if line.value >= TOKENS_AIM else "missed"
        rows.append((f"tokens/s at {AIMED_STREAMS} streams", f"{line.value:,.0f}, aim {TOKENS_AIM:,.0f}: {met}"))
        met = "met" if line.ratio >= RATIO_AIM else "missed"
        rows.append(("of what the bare application sends", f"{line.ratio:.3f}, aim {RATIO_AIM:g}: {met}"))
    return rows
