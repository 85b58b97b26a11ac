"""Brings the answers of background requests from their pools to PostgreSQL, before the logs' time is over.

Run by `manage.py settler`, one or several at once. Invariants: an end is kept once, as its pool said it; what a pool
does not know is left alone (after a lost Redis it waits for `manage.py rebuild_queue`), unless its client was never
told of it; each sweep is bounded.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from redis.exceptions import RedisError

from contracts.errors import Unavailable
from contracts.outcomes import JobState
from controlplane.background.keeping import KeptInDatabase, OpenRequest
from fairqueue.queue import FairQueue
from gateway.edge.background import read_frames
from gateway.kept import KeptAnswer, KeptState
from stores.stopping import stopped_within

BATCH = 256  # rows of one sweep; the next goes on behind them
STORE_SECONDS = 5.0
NEVER_QUEUED_MS = 300_000  # far past the time in which an accepted one is queued
TELL_EVERY = 60  # sweeps

log = logging.getLogger("weir.background")


@dataclass(slots=True)
class BringReport:
    """What the sweeps of this process did. `lost`: rows that no pool knew at the last whole round."""

    kept: int = 0
    dropped: int = 0
    failures: int = 0
    lost: int = 0


@dataclass(kw_only=True)
class AnswerKeeper:
    """`queue_of` opens a pool's queue."""

    kept: KeptInDatabase
    queue_of: Callable[[str], FairQueue]
    report: BringReport = field(default_factory=BringReport)
    _after: str = ""
    _lost: int = 0
    _sweeps: int = 0

    async def run(self, *, stopping: asyncio.Event, every_seconds: float = 1.0) -> None:
        """Sweeps until `stopping` is set. A store that is away is waited for."""
        while not stopping.is_set():
            await self.sweep()
            await stopped_within(stopping, seconds=every_seconds)

    async def sweep(self) -> None:
        """The next BATCH of open rows; at their end it begins anew."""
        self._sweeps += 1
        try:
            rows = await self.kept.open_requests(after=self._after, limit=BATCH)
            for row in rows:
                await self._look(row)
        except (Unavailable, RedisError, OSError, TimeoutError) as error:
            self.report.failures += 1
            log.warning("answers of background requests wait (%s)", type(error).__name__)
            return
        if len(rows) == BATCH:
            self._after = rows[-1].ticket.request_id
            return
        self.report.lost, self._lost, self._after = self._lost, 0, ""
        if self.report.lost and self._sweeps % TELL_EVERY == 0:
            log.error("%d background requests are in no queue: run manage.py rebuild_queue", self.report.lost)

    async def _look(self, row: OpenRequest) -> None:
        ticket, queue = row.ticket, self.queue_of(row.ticket.pool)
        async with asyncio.timeout(STORE_SECONDS):
            status = await queue.status(request_id=ticket.request_id)
        if status is None:
            if row.state is not KeptState.ACCEPTED:
                self._lost += 1
            elif await self.kept.drop_unqueued(ticket, older_than_ms=NEVER_QUEUED_MS):
                self.report.dropped += 1
            return
        if status.state is JobState.SETTLED:
            await self._keep(row, queue, last_seq=status.last_seq)
        elif row.state is KeptState.ACCEPTED:  # its gateway died, or PostgreSQL was away, before it could say so
            await self.kept.mark_queued(ticket)

    async def _keep(self, row: OpenRequest, queue: FairQueue, *, last_seq: int) -> None:
        request_id = row.ticket.request_id
        frames = await read_frames(queue, request_id=request_id)
        async with asyncio.timeout(STORE_SECONDS):
            piece = await queue.read_log(request_id=request_id, after_seq=0, limit=0)
        if piece is None or piece.final is None:
            return
        whole = frames if len(frames) == last_seq else None
        if whole is None:
            log.error("request %s: its log was gone before its answer was kept", request_id)
        answer = KeptAnswer(epoch=piece.epoch, final=piece.final, frames=whole, writers=piece.writers)
        self.report.kept += await self.kept.end(row.ticket, answer)
