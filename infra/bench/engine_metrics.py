"""Cache occupancy and waiting requests, as the engine itself reports them on /metrics (Prometheus text).

Called by the benches while a load runs. Invariant: an engine that reports nothing is recorded as such.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from infra.bench.load import Refused, Target, get_text
from infra.bench.sse import BadAnswer

EVERY_SECONDS = 1.0
OCCUPANCY = "vllm:kv_cache_usage_perc"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
QUERIES = "vllm:prefix_cache_queries_total"
HITS = "vllm:prefix_cache_hits_total"


@dataclass(slots=True)
class Occupancy:
    """What was seen: one entry a look, newest last."""

    looks: list[dict[str, float]] = field(default_factory=list)
    silent: int = 0

    def rows(self) -> list[tuple[str, str]]:
        """For the record."""
        if not self.looks:
            return [("cache occupancy", "the engine reported none")]
        first, last = self.looks[0], self.looks[-1]
        peak = {name: max(look.get(name, 0.0) for look in self.looks) for name in (OCCUPANCY, RUNNING, WAITING)}
        asked, hit = (last.get(name, 0.0) - first.get(name, 0.0) for name in (QUERIES, HITS))
        return [
            ("cache occupancy", f"at most {peak[OCCUPANCY]:.1%}, {last.get(OCCUPANCY, 0.0):.1%} at the end"),
            ("in the engine", f"at most {peak[RUNNING]:.0f} running, {peak[WAITING]:.0f} waiting"),
            ("prefix cache", f"{hit:.0f} of {asked:.0f} prompt tokens found"),
            ("looks", f"{len(self.looks)}, {self.silent} unanswered"),
        ]


@asynccontextmanager
async def watching(engine: Target) -> AsyncIterator[Occupancy]:
    """Looks once a second while the block runs, for both sides of a comparison alike."""
    seen = Occupancy()
    async with asyncio.TaskGroup() as tasks:
        watcher = tasks.create_task(_watch(engine, seen))
        try:
            yield seen
        finally:
            watcher.cancel()


async def _watch(engine: Target, seen: Occupancy) -> None:
    while True:
        try:
            seen.looks.append(read_metrics((await get_text(engine, "/metrics", deadline=5.0)).decode()))
        except (OSError, TimeoutError, Refused, BadAnswer):
            seen.silent += 1
        await asyncio.sleep(EVERY_SECONDS)


def read_metrics(text: str) -> dict[str, float]:
    """Sums of the samples of each metric over its labels; comments and what is no number are passed over."""
    sums: dict[str, float] = {}
    for line in text.splitlines():
        name, _, rest = line.partition("{")
        value = rest.rpartition("}")[2] if rest else line.partition(" ")[2]
        name = name if rest else line.partition(" ")[0]
        if line.startswith("#") or not name:
            continue
        try:
            sums[name] = sums.get(name, 0.0) + float(value.split()[0])
        except (ValueError, IndexError):
            continue
    return sums
