"""Which faults a round has, drawn from its seed, and how each is done. Called by `round`.

Invariants: the plan is a pure function of the seed; what is frozen is always thawed; a process that the supervisor is
near giving up (deaths in a row) is left alone, because a platform that is switched off proves nothing.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from infra.chaos.installation import Installation
from infra.chaos.network import Proxy

KILL, FREEZE, RESTART, CUT = "kill -9", "freeze", "restart", "cut"
# How often each is drawn, and how long a freeze of it lasts (seconds): past the leases' five for workers and engines.
TARGETS: dict[str, tuple[int, float]] = {
    "gateway": (3, 3.0),
    "worker": (4, 8.0),
    "engine": (3, 8.0),
    "settler": (2, 4.0),
    "meter": (2, 4.0),
    "valkey": (2, 2.5),
}
CUTS = ("reset", "some", "lost replies", "half-open")
DEATHS_MAX = 3  # in a row; the supervisor gives up at six


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of a plan. `at` and `seconds` count from the round's first request; `pick` chooses among equals."""

    kind: str
    target: str
    at: float
    seconds: float = 0.0
    pick: int = 0

    @property
    def name(self) -> str:
        return f"{self.kind} {self.target}"


def plan_faults(chance: random.Random, *, load_seconds: float, most: int = 3) -> tuple[Fault, ...]:
    """One to `most` faults while the load runs, in order of time."""
    faults = [_draw(chance, load_seconds) for _ in range(chance.randint(1, most))]
    return tuple(sorted(faults, key=lambda fault: fault.at))


def _draw(chance: random.Random, load_seconds: float) -> Fault:
    at = round(chance.uniform(0.2, load_seconds), 2)
    kind = chance.choices((KILL, FREEZE, RESTART, CUT), weights=(5, 3, 2, 2))[0]
    if kind == CUT:
        return Fault(kind=kind, target=chance.choice(CUTS), at=at, seconds=round(chance.uniform(0.2, 2.0), 2))
    target = chance.choices(list(TARGETS), weights=[weight for weight, _ in TARGETS.values()])[0]
    if kind == RESTART and target == "engine":
        target = "worker"  # an engine is its worker's child; nobody restarts it by itself
    seconds = round(chance.uniform(0.3, TARGETS[target][1]), 2) if kind == FREEZE else 0.0
    return Fault(kind=kind, target=target, at=at, seconds=seconds, pick=chance.randrange(1 << 16))


async def strike(fault: Fault, installation: Installation) -> str:
    """Does it; what was hit, or why nothing was. A process that has just ended by itself is not an error."""
    if fault.kind == CUT:
        return await _cut(fault, installation.proxy)
    hit = [item for item in installation.running(fault.target) if item.deaths < DEATHS_MAX]
    if not hit:
        return "spared: none runs that has not just been restarted"
    chosen = hit[fault.pick % len(hit)]
    signum = {KILL: signal.SIGKILL, RESTART: signal.SIGTERM, FREEZE: signal.SIGSTOP}[fault.kind]
    with suppress(ProcessLookupError):
        os.kill(chosen.pid, signum)
        if fault.kind == FREEZE:
            try:
                await asyncio.sleep(fault.seconds)
            finally:
                os.kill(chosen.pid, signal.SIGCONT)
    return f"{chosen.name} ({chosen.pid})"


async def _cut(fault: Fault, proxy: Proxy) -> str:
    if fault.target == "lost replies":
        count = await proxy.lose_replies(seconds=fault.seconds)
    elif fault.target == "half-open":
        count = await proxy.half_open(seconds=fault.seconds)
    else:
        count = proxy.cut(share=1.0 if fault.target == "reset" else 0.4)
    return f"{count} connections to Valkey"


def describe(faults: Sequence[Fault]) -> str:
    """For the table."""
    return ", ".join(fault.name for fault in faults)
