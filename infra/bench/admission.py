"""Bench `admission`: what letting one request in costs, and how soon a revoked key is cut off.

Called by `manage.py bench admission`. Each gateway is a process with a gateway's own parts and no sockets
(`admission_probe`): the key, the checks of the body, the tokenizer, the limits, the guard and the enqueue on the
platform's own stores, as the demo tenant with its guardrail policy. Parts:

- admission: rounds of requests through one gateway, and through two at the same time.
- keys: distinct keys resolved for the first time, then from the cache, in one process.
- revocation: a stream over HTTP, its key revoked; the time until the stream's error frame, commit included.

Invariant: any order that a probe does not answer fails the run; a number is never made from what happened to succeed.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import IO, Any

from infra.bench.instance import ROOT, Instance, environment_of
from infra.bench.load import Target
from infra.bench.output import Measure
from infra.bench.stats import describe, percentile

NAME = "admission"
TARGETS = {"cpu_ms_per_admission": 0.7, "auth_keys_per_s": 1_000.0, "revocation_p99_ms": 1_000.0}
PEER = "one gateway"
ORDER_SECONDS = 180.0
END_SECONDS = 20.0
_SAID_BYTES = 2_000
_START = "import django; django.setup(); from infra.bench.admission_probe import main; main()"


class ProbeFailed(Exception):
    """A probe ended or was silent; the text holds the end of what it said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do. `requests` in each of `rounds`, for each gateway; a first round warms up and is not measured."""

    requests: int = 400
    concurrency: int = 16
    rounds: int = 5
    prompt_words: int = 40
    keys: int = 1_000
    revocations: int = 30
    max_tokens: int = 256

    @property
    def steps(self) -> int:
        """How many orders the plan gives, for the progress bar."""
        return 2 * (1 + self.rounds) + 1 + self.revocations


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One gateway's round. Monotonic seconds of the machine; CPU seconds of its process and of the store."""

    requests: int
    began: float
    ended: float
    cpu: float
    store_cpu: float


@dataclass(slots=True, kw_only=True)
class Found:
    """All of a whole run. `pairs`: by round, the two gateways that ran at the same time."""

    plan: Plan
    singles: list[Round] = field(default_factory=list)
    pairs: list[list[Round]] = field(default_factory=list)
    keys: dict[str, float] = field(default_factory=dict)
    revocations: list[float] = field(default_factory=list)


class Probe:
    """A child process that obeys one order at a time."""

    def __init__(self, process: asyncio.subprocess.Process, said: IO[bytes]) -> None:
        self._process, self._said = process, said

    async def order(self, name: str, **given: Any) -> dict[str, Any]:
        """Raises ProbeFailed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(ORDER_SECONDS):
                self._process.stdin.write(json.dumps([name, given]).encode() + b"\n")
                await self._process.stdin.drain()
                answer: dict[str, Any] = json.loads(await self._process.stdout.readline())
        except (OSError, ValueError, TimeoutError) as error:
            self._said.seek(0)
            said = self._said.read()[-_SAID_BYTES:].decode(errors="replace")
            raise ProbeFailed(f"{name}: no answer ({type(error).__name__}); the probe said:\n{said}") from error
        return answer

    async def end(self) -> None:
        """Closes its stdin, at which it cleans up and ends; kills it when it does not."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(END_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


@asynccontextmanager
async def probe_of(instance: Instance) -> AsyncIterator[Probe]:
    """A probe on the stores of a running platform, ended with the block."""
    environment = environment_of(home=instance.home, engine=None, base=os.environ)
    environment["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "platform"), str(ROOT)])
    with tempfile.TemporaryFile() as said:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _START, cwd=ROOT, env=environment,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=said,
        )  # fmt: skip
        probe = Probe(process, said)
        try:
            yield probe
        finally:
            await probe.end()


async def run(*, instance: Instance, target: Target, plan: Plan, advance: Callable[[int], None]) -> Found:
    """The whole plan as the tenant of `target`. Raises ProbeFailed."""
    found = Found(plan=plan)
    async with AsyncExitStack() as stack:
        probes = [await stack.enter_async_context(probe_of(instance)) for _ in range(2)]
        for number in range(-1, plan.rounds):
            (single,) = await _round(probes[:1], target, plan, number=number)
            advance(1)
            pair = await _round(probes, target, plan, number=number)
            advance(1)
            if number >= 0:
                found.singles.append(single)
                found.pairs.append(pair)
        found.keys = await probes[0].order("authenticate", keys=plan.keys)
        advance(1)
        for _ in range(plan.revocations):
            answer = await probes[0].order(
                "revoke", host=target.host, port=target.port, model=target.model, max_tokens=plan.max_tokens
            )
            found.revocations.append(float(answer["seconds"]))
            advance(1)
    return found


async def _round(probes: Sequence[Probe], target: Target, plan: Plan, *, number: int) -> list[Round]:
    """The same round on each probe at the same time; no prompt comes twice."""
    given = {"key": target.api_key, "model": target.model, "requests": plan.requests, "concurrency": plan.concurrency}
    async with asyncio.TaskGroup() as tasks:
        orders = [
            tasks.create_task(
                probe.order(
                    "admit",
                    **given,
                    first=((number + 1) * 4 + 2 * (len(probes) - 1) + index) * plan.requests,
                    prompt_words=plan.prompt_words,
                )
            )
            for index, probe in enumerate(probes)
        ]
    return [Round(**order.result()) for order in orders]


def admissions_per_second(together: Sequence[Round]) -> float:
    """Of gateways that ran at the same time: from the first start to the last end. Raises ZeroDivisionError."""
    seconds = max(one.ended for one in together) - min(one.began for one in together)
    return sum(one.requests for one in together) / seconds


def measures(found: Found) -> list[Measure]:
    """The lines of a whole run. Raises statistics.StatisticsError, ValueError when nothing was measured."""
    plan = found.plan
    single: dict[str, str | int | float] = {
        "gateways": 1, "concurrency": plan.concurrency, "requests": plan.requests, "prompt_words": plan.prompt_words,
    }  # fmt: skip
    cpu = statistics.median(one.cpu * 1_000 / one.requests for one in found.singles)
    store = statistics.median(one.store_cpu * 1_000 / one.requests for one in found.singles)
    one_rate = statistics.median(admissions_per_second([one]) for one in found.singles)
    two_rate = statistics.median(map(admissions_per_second, found.pairs))
    keys = found.keys
    cut_ms = percentile([seconds * 1_000 for seconds in found.revocations], percent=99)
    return [
        Measure(bench=NAME, case=single, metric="cpu_ms_per_admission", value=cpu, unit="ms"),
        Measure(bench=NAME, case=single, metric="store_cpu_ms_per_admission", value=store, unit="ms"),
        Measure(bench=NAME, case=single, metric="admissions_per_s", value=one_rate, unit="1/s"),
        Measure(
            bench=NAME, case=single | {"gateways": 2}, metric="admissions_per_s", value=two_rate, unit="1/s",
            peer=PEER, peer_value=one_rate,
        ),
        Measure(
            bench=NAME, case={"cache": "warm", "keys": plan.keys}, metric="auth_keys_per_s",
            value=keys["warm_keys"] / keys["warm"], unit="1/s",
        ),
        Measure(
            bench=NAME, case={"cache": "cold", "keys": plan.keys}, metric="auth_keys_per_s",
            value=keys["keys"] / keys["cold"], unit="1/s",
        ),
        Measure(
            bench=NAME, case={"streams": plan.revocations}, metric="revocation_p99_ms", value=cut_ms, unit="ms"
        ),
    ]  # fmt: skip


def verdict_rows(found: Found, lines: Sequence[Measure]) -> list[tuple[str, str]]:
    """Spread of the rounds, and aims against what was seen, in words."""
    rows = [
        ("CPU per admission", describe([one.cpu * 1_000 / one.requests for one in found.singles], unit="ms", digits=3)),
        ("through one gateway", describe([admissions_per_second([one]) for one in found.singles], unit="1/s")),
        ("through two", describe([admissions_per_second(pair) for pair in found.pairs], unit="1/s")),
        ("revocation to cut", describe([seconds * 1_000 for seconds in found.revocations], unit="ms")),
    ]
    for line in lines:
        aim = TARGETS.get(line.metric)
        if aim is None:
            continue
        met = line.value >= aim if line.unit == "1/s" else line.value <= aim
        cache = f" cache={line.case['cache']}" if "cache" in line.case else ""
        rows.append((line.metric + cache, f"{line.value:.3f}, aim {aim:g}: {'met' if met else 'missed'}"))
    return rows
