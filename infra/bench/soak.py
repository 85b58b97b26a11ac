"""Bench `soak`: thousands of streams cut, thousands of slow or mute connections: is anything left, or slower?

Called by `manage.py bench soak`, on a private platform whose worker has its engine inside itself (`inline_engine`).

- cut: streams are opened and broken off, a third of them before an answer, a third at the first token, a third later.
  Memory, descriptors and the store's clients are looked at after a first part and at the end: they must be flat.
- slow: some connections ask for a long answer and take a few bytes now and then, some begin a head and never end it.
  Meanwhile others stream at a reader's pace; their p99 is compared with before and after.

The bench fails (after its table) when something is not flat. Invariant: loopback only, and every count has a bound.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from infra.bench.load import Connection, Target, open_connections, read_answer
from infra.bench.observed import Sample, growth, sample, table_rows
from infra.bench.output import Measure
from infra.bench.prompts import make_prompt
from infra.bench.quiet import quiet
from infra.bench.sse import Head, Part
from infra.bench.stats import percentile
from stores.redis import Client

NAME = "soak"
DEADLINE = 60.0
PACE = 20  # tokens a second of the others and of what is cut
RATIO_MAX = 1.5  # of the others' p99: beyond it, and by more than a slack, it is not unchanged
SLACK_MS = {"itl": 10.0, "ttft": 50.0}
CALM_SECONDS = 10.0
SPREAD_SECONDS = 0.5  # over which the others begin
_SETTLE_SECONDS = 20.0
_RECEIVE_BUFFER = 8_192
_SIP_BYTES, _SIP_SECONDS = 3_072, 1.5
_EVENT = b"data: "


class SoakFailed(Exception):
    """The load itself went wrong; the text says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Counts. `streams` are cut, `at_once` of them at a time; `slow` and `mute` connections stay open."""

    streams: int = 10_000
    at_once: int = 64
    slow: int = 1_000
    mute: int = 1_000
    slow_tokens: int = 600
    others: int = 30
    others_tokens: int = 30
    rounds: int = 4  # quick: the server waits ten seconds for a mute one's head
    seed: int = 1

    @property
    def steps(self) -> int:
        """For the progress bar."""
        return self.streams + self.slow + self.mute + 3 * self.rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Others:
    """What those saw who read as they should: milliseconds."""

    ttft: Sequence[float]
    gaps: Sequence[float]


@dataclass(slots=True, kw_only=True)
class Found:
    """All of a whole run. `stuck`: slow connections whose answer was not all taken when the others were measured."""

    plan: Plan
    samples: list[Sample] = field(default_factory=list)
    slow_samples: list[Sample] = field(default_factory=list)
    others: dict[str, Others] = field(default_factory=dict)
    stuck: int = 0
    mute_open: int = 0

    def failures(self) -> list[str]:
        """What is not flat or not unchanged, in words."""
        found = growth(self.samples[0], self.samples[-1])
        held = self.plan.slow + self.plan.mute
        slow = growth(self.slow_samples[0], self.slow_samples[-1], held=held) if self.slow_samples else []
        found += [f"slow connections: {text}" for text in slow]
        for name, ours, before in self.pairs():
            if ours > before * RATIO_MAX and ours - before > SLACK_MS[name]:
                found.append(f"{name} p99 of the others is {ours:.1f} ms beside slow ones, {before:.1f} ms without")
        return found

    def pairs(self) -> list[tuple[str, float, float]]:
        """Name, p99 beside the slow ones and without them (before and after, the larger), in milliseconds."""
        if not self.others:
            return []
        seen = {
            when: (percentile(others.ttft, percent=99), percentile(others.gaps, percent=99))
            for when, others in self.others.items()
        }
        return [
            (name, seen["beside"][index], max(seen["before"][index], seen["after"][index]))
            for index, name in enumerate(("ttft", "itl"))
        ]


async def run(
    *, target: Target, pids: Mapping[str, int], redis: Client, plan: Plan, advance: Callable[[int], None]
) -> Found:
    """The whole plan. Raises SoakFailed, OSError."""
    found = Found(plan=plan)
    source = random.Random(plan.seed)  # noqa: S311 - repeatable, no secret
    parts = [plan.streams // 5] * 4 + [plan.streams - 4 * (plan.streams // 5)]
    done = 0
    for part in parts:
        await _cut_many(target, count=part, plan=plan, source=source, advance=advance)
        done += part
        found.samples.append(await _settled(pids, redis, done, found.samples))
    if plan.slow + plan.mute:
        await _beside_slow(found, target, pids, redis, advance)
    return found


async def _settled(pids: Mapping[str, int], redis: Client, streams: int, before: Sequence[Sample]) -> Sample:
    """A sample once what was cut has been cleared away, or the time for that is over."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _SETTLE_SECONDS
    last = await sample(pids=pids, redis=redis, streams=streams)
    while loop.time() < until:
        await asyncio.sleep(0.5)
        now = await sample(pids=pids, redis=redis, streams=streams)
        calm = now.descriptors == last.descriptors and now.clients == last.clients
        if calm and (not before or not growth(before[0], now)):
            return now
        last = now
    return last


async def _cut_many(
    target: Target, *, count: int, plan: Plan, source: random.Random, advance: Callable[[int], None]
) -> None:
    """Opens and cuts. Raises SoakFailed when the platform refuses or does not answer."""
    waiting = iter([(index, source.choice(("at once", "first", "later"))) for index in range(count)])

    async def work() -> None:
        for index, when in waiting:
            await _cut_one(target, index=index, when=when)
            advance(1)

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(plan.at_once):
                tasks.create_task(work())
    except* (OSError, TimeoutError) as failures:
        first = failures.exceptions[0]
        raise SoakFailed(f"{len(failures.exceptions)} streams could not be cut, the first: {first!r}") from failures


async def _cut_one(target: Target, *, index: int, when: str) -> None:
    """One stream, broken off. Raises SoakFailed, OSError, TimeoutError."""
    async with asyncio.timeout(DEADLINE):
        reader, writer = await asyncio.open_connection(target.host, target.port)
        try:
            writer.write(_request(target, tokens=200, pace=PACE, index=index))
            await writer.drain()
            said = b""
            wanted = {"at once": 0, "first": 1, "later": 3}[when]
            while said.count(_EVENT) < wanted:
                piece = await reader.read(65_536)
                if not piece:
                    raise SoakFailed(f"the server closed a stream: {said[:300]!r}")
                said += piece
                if not said.startswith(b"HTTP/1.1 200"):
                    raise SoakFailed(f"refused: {said[:300]!r}")
        finally:
            writer.transport.abort()


async def _beside_slow(
    found: Found, target: Target, pids: Mapping[str, int], redis: Client, advance: Callable[[int], None]
) -> None:
    plan, total = found.plan, found.plan.streams
    found.slow_samples.append(await _settled(pids, redis, total, found.samples))
    found.others["before"] = await _others(target, plan, advance)
    async with AsyncExitStack() as open_ones:
        slows = await open_ones.enter_async_context(_slow(target, plan, advance))
        await quiet(seconds=CALM_SECONDS)  # their answers are made and metered: that is not what is asked
        mutes = await open_ones.enter_async_context(_mute(target, plan.mute))
        advance(plan.mute)
        await asyncio.sleep(1.0)  # they are taken in
        found.others["beside"] = await _others(target, plan, advance)
        found.mute_open = sum(_is_untold(one) for one in mutes)
        found.stuck = sum(not _is_closed(one) for one in slows)
        found.slow_samples.append(await sample(pids=pids, redis=redis, streams=total))
    found.others["after"] = await _others(target, plan, advance)
    found.slow_samples.append(await _settled(pids, redis, total + plan.slow + plan.mute, found.slow_samples))


async def _others(target: Target, plan: Plan, advance: Callable[[int], None]) -> Others:
    """Streams at a reader's pace, as many rounds as planned. Raises SoakFailed."""
    ttft, gaps = list[float](), list[float]()
    async with open_connections(target, count=plan.others) as connections:
        for number in range(plan.rounds):
            requests = [
                _request(target, tokens=plan.others_tokens, pace=PACE, index=number * plan.others + i)
                for i in range(plan.others)
            ]
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(_later(SPREAD_SECONDS * index / plan.others, connection, request))
                    for index, (connection, request) in enumerate(zip(connections, requests, strict=True))
                ]
            for task in tasks:
                written, head, parts = task.result()
                answer = read_answer(written=written, head=head, parts=parts)
                if answer.failure:
                    raise SoakFailed(f"one that reads as it should failed: {answer.failure}")
                ttft.append(answer.ttft * 1_000)
                gaps += [gap * 1_000 for gap in answer.gaps]
            advance(1)
    return Others(ttft=ttft, gaps=gaps)


async def _later(seconds: float, connection: Connection, request: bytes) -> tuple[float, Head, list[Part]]:
    await asyncio.sleep(seconds)
    return await connection.exchange(request, deadline=DEADLINE)


@asynccontextmanager
async def _mute(target: Target, count: int) -> AsyncIterator[list[socket.socket]]:
    """Connections that begin a head and say no more."""
    sockets = []
    try:
        for _ in range(count):
            one = _connect(target)
            sockets.append(one)
            one.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: ")
        yield sockets
    finally:
        for one in sockets:
            one.close()


@asynccontextmanager
async def _slow(target: Target, plan: Plan, advance: Callable[[int], None]) -> AsyncIterator[list[socket.socket]]:
    """Connections that ask for a long answer and sip at it; open once each has begun to get its answer."""
    sockets: list[socket.socket] = []
    try:
        async with asyncio.TaskGroup() as tasks:
            sipping = tasks.create_task(_sip(sockets))
            for start in range(0, plan.slow, plan.at_once):
                wave = [_connect(target) for _ in range(min(plan.at_once, plan.slow - start))]
                sockets += wave
                for index, one in enumerate(wave):
                    one.send(_request(target, tokens=plan.slow_tokens, pace=0, index=start + index))
                await _answered(wave)
                advance(len(wave))
            yield sockets
            sipping.cancel()
    finally:
        for one in sockets:
            one.close()


async def _answered(wave: Sequence[socket.socket]) -> None:
    """Until each has something to read. Raises TimeoutError."""
    async with asyncio.timeout(DEADLINE):
        for one in wave:
            while not _peek(one):  # noqa: ASYNC110 - nothing but the socket knows, and it is not on the loop
                await asyncio.sleep(0.01)


async def _sip(sockets: list[socket.socket]) -> None:
    """Takes a little of each now and then, so that none takes nothing."""
    while True:
        await asyncio.sleep(_SIP_SECONDS)
        for one in sockets:
            try:
                one.recv(_SIP_BYTES)
            except OSError:
                continue  # nothing there now, or the server has given it up


def _connect(target: Target) -> socket.socket:
    one = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
    one.settimeout(DEADLINE)
    one.connect((target.host, target.port))
    one.setblocking(False)  # noqa: FBT003 - the standard library's signature
    return one


def _peek(one: socket.socket) -> bool:
    try:
        return bool(one.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


def _is_untold(one: socket.socket) -> bool:
    """Whether the server has said nothing yet, neither that it is too late nor farewell."""
    try:
        one.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _is_closed(one: socket.socket) -> bool:
    """Whether the server has closed it. What waits to be read hides that: then it counts as open."""
    try:
        return one.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _request(target: Target, *, tokens: int, pace: int, index: int) -> bytes:
    body: dict[str, Any] = {
        "model": target.model,
        "messages": [{"role": "user", "content": make_prompt(seed=7, index=index, words=20)}],
        "max_tokens": tokens,
        "stream": True,
    }
    if pace:
        body["seed"] = pace
    return target.request(method="POST", path="/v1/chat/completions", body=json.dumps(body).encode())


def measures(found: Found) -> list[Measure]:
    """The lines of a run, whether all is flat or not."""
    plan, first, last = found.plan, found.samples[0], found.samples[-1]
    case: dict[str, str | int | float] = {"cut_streams": plan.streams}
    lines = [
        Measure(
            bench=NAME, case=case, metric=f"{name}_grown_bytes_per_stream", unit="bytes",
            value=(last.resident[name] - first.resident[name]) / max(last.streams - first.streams, 1),
        )
        for name in last.resident
    ]  # fmt: skip
    for name in last.descriptors:
        more = last.descriptors[name] - first.descriptors[name]
        lines.append(Measure(bench=NAME, case=case, metric=f"{name}_more_descriptors", value=more, unit="1"))
    clients = last.clients - first.clients
    lines.append(Measure(bench=NAME, case=case, metric="more_store_clients", value=clients, unit="1"))
    beside: dict[str, str | int | float] = {"slow": plan.slow, "mute": plan.mute}
    for name, ours, before in found.pairs():
        lines.append(
            Measure(
                bench=NAME, case=beside, metric=f"others_{name}_p99_ms", value=ours, unit="ms", peer="without them",
                peer_value=before,
            )
        )  # fmt: skip
    return lines


def record(found: Found) -> dict[str, list[tuple[str, str]]]:
    """The tables: before and after, and what the verdict is."""
    sections = {"streams opened and cut": table_rows(found.samples)}
    if found.others:
        rows = table_rows(found.slow_samples)
        rows.append(("slow ones still open", f"{found.stuck} of {found.plan.slow} while the others were measured"))
        rows.append(("mute ones still open", f"{found.mute_open} of {found.plan.mute} then"))
        for when, seen in found.others.items():
            ttft, gap = percentile(seen.ttft, percent=99), percentile(seen.gaps, percent=99)
            rows.append((f"others, {when}", f"p99: first token {ttft:.1f} ms, between tokens {gap:.1f} ms"))
        sections["slow and mute: before → beside → after"] = rows
    sections["verdict"] = [("flat", "yes")] if not found.failures() else [("NOT flat", one) for one in found.failures()]
    return sections
