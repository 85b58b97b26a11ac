"""How a worker stops: running requests finish or go back within a deadline. Called by `loop` and `__main__`."""

import asyncio
import signal

import structlog

from workers.attempt import DRAINED
from workers.publish import Publisher

LAST_WORDS_SECONDS = 5.0  # to end or hand back what the deadline cut

log = structlog.get_logger(__name__)


def stop_on_signals(stop: asyncio.Event) -> None:
    """SIGTERM and SIGINT set `stop`; a second one changes nothing."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


async def drain(*, publisher: Publisher, requests: set[asyncio.Task[None]], seconds: float) -> None:
    """Wait for the running requests; past the deadline each is handed back, or ended where output is out."""
    log.info("draining", running=len(requests), seconds=seconds)
    if requests:
        await asyncio.wait(requests, timeout=seconds)
    for lane in publisher.lanes:
        lane.abort(DRAINED)
    if requests:
        _, left = await asyncio.wait(requests, timeout=LAST_WORDS_SECONDS)
        for task in left:
            task.cancel()
