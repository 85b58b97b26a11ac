"""Waits until the machine has little to do, so that work one side left for later is not measured as another's."""

import asyncio
from pathlib import Path
from time import monotonic

BUSY_MAX = 0.25  # of all cores together
LOOK_SECONDS = 0.25


async def quiet(*, seconds: float) -> bool:
    """Wait at most so long. Whether it became quiet."""
    deadline = monotonic() + seconds
    before = _busy_and_all()
    while monotonic() < deadline:
        await asyncio.sleep(LOOK_SECONDS)
        now = _busy_and_all()
        busy, every = now[0] - before[0], now[1] - before[1]
        if busy <= every * BUSY_MAX:
            return True
        before = now
    return False


def _busy_and_all() -> tuple[int, int]:
    """Clock ticks of all cores since the start of the machine (proc(5), /proc/stat): not idle, and all."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)
