"""Sends what all running requests released as one `step` script, heartbeats included. Called by `loop`, `attempt`.

Invariants: frames of a request leave in order, each with the seq it was given here, and are sent again unchanged until
the script has answered; a lease is extended only with engine progress; what waits is bounded (`room`). Batching is
natural: whatever arrived while the last call ran goes with the next.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

import structlog
from redis.exceptions import RedisError

from contracts.clock import Clock
from contracts.jobs import Claim
from contracts.tokens import TokenCounts
from fairqueue.messages import AbortReason, StepEntry, StepReply

ENTRIES_MAX = 512
FRAMES_MAX = 1024
RETRY_SECONDS = 0.2
LOST_SECONDS = 30.0  # every lease has lapsed long before

log = structlog.get_logger(__name__)


class StepQueue(Protocol):
    """The part of `fairqueue.queue.FairQueue` that is used here."""

    async def step(self, *, worker_id: str, entries: Sequence[StepEntry], holding: Sequence[str]) -> StepReply: ...


@dataclass(slots=True)
class Lane:
    """The way of one running request to its log.

    `counts` and `delivered_tokens` are as of the last frame handed over, `logged_tokens` as of the last frame logged.
    `pending_ids`, beside `pending`, are the token ids that each frame carries while the request is `replayable`: while
    all of its frames have theirs, so that another worker could go on with it.
    `flushed`: nothing is on its way, and nothing waits to be sent (an abort means that what waits never will be).
    """

    claim: Claim
    next_seq: int
    pending: list[bytes] = field(default_factory=list)
    pending_ids: list[bytes] = field(default_factory=list)
    replayable: bool = True
    in_flight: int = 0
    counts: TokenCounts = field(default_factory=TokenCounts)
    delivered_tokens: int = 0
    logged_tokens: int = 0
    advanced: bool = False
    waits_for_engine: bool = True
    abort_reason: str = ""
    first_released_at: float | None = None
    on_abort: Callable[[], None] | None = None
    flushed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def request_id(self) -> str:
        return self.claim.ticket.request_id

    @property
    def last_seq(self) -> int:
        """Seq of the last frame that the script has taken."""
        return self.next_seq - 1

    def is_aborted(self) -> bool:
        return bool(self.abort_reason)

    def abort(self, reason: str) -> None:
        """Stop this request; the first reason stands."""
        if self.abort_reason:
            return
        self.abort_reason = reason
        if not self.in_flight:
            self.flushed.set()
        if self.on_abort is not None:
            self.on_abort()


class Publisher:
    """One per worker. `progressing()`: whether the engine works, for requests that had no token lately."""

    def __init__(
        self,
        *,
        queue: StepQueue,
        worker_id: str,
        clock: Clock,
        progressing: Callable[[], bool],
        step_seconds: float,
        frames_pending_max: int,
    ) -> None:
        self._queue = queue
        self._worker_id = worker_id
        self._clock = clock
        self._progressing = progressing
        self._step_seconds = step_seconds
        self._frames_pending_max = frames_pending_max
        self._lanes: dict[str, Lane] = {}
        self._dirty = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._pending = 0

    @property
    def lanes(self) -> list[Lane]:
        return list(self._lanes.values())

    def open(self, claim: Claim) -> Lane:
        """From now on the request is in every heartbeat."""
        out = claim.counts.completion  # of earlier attempts, where this one goes on
        lane = Lane(
            claim=claim, next_seq=claim.log_length + 1, counts=claim.counts, delivered_tokens=out, logged_tokens=out
        )
        lane.flushed.set()
        self._lanes[lane.request_id] = lane
        return lane

    def close(self, lane: Lane) -> None:
        self._pending -= len(lane.pending)
        lane.pending.clear()
        lane.pending_ids.clear()
        self._lanes.pop(lane.request_id, None)
        self._make_room()

    def put(
        self,
        lane: Lane,
        *,
        frames: list[bytes],
        counts: TokenCounts,
        delivered_tokens: int,
        ids: list[bytes] | None = None,
    ) -> None:
        """Hand over what a chunk released; `counts` are cumulative. After an abort nothing more is taken.

        `ids`: the token ids of each frame, packed; None: no other worker could go on after these.
        """
        if lane.abort_reason:
            return
        lane.counts = counts
        lane.delivered_tokens = delivered_tokens
        lane.advanced = True
        if frames:
            begins = lane.next_seq == 1 and not lane.pending and not counts.completion
            lane.pending += frames
            lane.replayable = lane.replayable and ids is not None
            lane.pending_ids += ids or [b""] * len(frames)
            lane.flushed.clear()
            self._pending += len(frames)
            if self._pending >= self._frames_pending_max:
                self._room.clear()
            if not begins:  # engines say the role right before the first token: one step carries both
                self._dirty.set()

    async def seal(self, lane: Lane) -> int:
        """Drop what was never sent and wait for what is on its way. Returns the seq of the last frame logged."""
        dropped = len(lane.pending) - lane.in_flight
        del lane.pending[lane.in_flight :]
        del lane.pending_ids[lane.in_flight :]
        self._pending -= dropped
        self._make_room()
        if not lane.in_flight:
            lane.flushed.set()
        await lane.flushed.wait()
        return lane.last_seq

    async def room(self) -> None:
        """Wait while too many frames are pending: the engine's stream is not read on meanwhile."""
        await self._room.wait()

    async def run(self) -> None:
        """Send until cancelled."""
        beat_at = self._clock.monotonic()
        while True:
            left = beat_at + self._step_seconds - self._clock.monotonic()
            await self._wait_dirty(left)
            beat = self._clock.monotonic() >= beat_at + self._step_seconds
            if beat:
                beat_at = self._clock.monotonic()
            if self._lanes:
                await self._step(beat=beat)

    async def _wait_dirty(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(seconds, 0)):
                await self._dirty.wait()
        except TimeoutError:
            pass  # time for a heartbeat
        self._dirty.clear()

    async def _step(self, *, beat: bool) -> None:
        chosen = (lane for lane in self._lanes.values() if (lane.pending or beat) and not lane.abort_reason)
        lanes = list(islice(chosen, ENTRIES_MAX))
        delivered = [lane.delivered_tokens for lane in lanes]
        engine_works = self._progressing()
        entries = [self._entry(lane, engine_works=engine_works) for lane in lanes]
        reply = await self._send(entries)
        now = self._clock.monotonic()
        for lane, tokens in zip(lanes, delivered, strict=True):
            self._sent(lane)
            if reply is not None:
                lane.logged_tokens = tokens
                lane.first_released_at = lane.first_released_at or (now if lane.last_seq else None)
        if reply is not None:
            for abort in reply.aborts:
                if abort.request_id in self._lanes:
                    self._lanes[abort.request_id].abort(abort.reason.value)
        if any(lane.pending and not lane.abort_reason for lane in self._lanes.values()):
            self._dirty.set()
        self._make_room()

    def _entry(self, lane: Lane, *, engine_works: bool) -> StepEntry:
        frames = lane.pending[:FRAMES_MAX]
        lane.in_flight = len(frames)
        progressed = lane.advanced or not lane.waits_for_engine or engine_works
        lane.advanced = False
        return StepEntry(
            request_id=lane.request_id,
            fence=lane.claim.fence,
            first_seq=lane.next_seq,
            frames=frames,
            counts=lane.counts,
            delivered_tokens=lane.delivered_tokens,
            progressed=progressed,
            ids=lane.pending_ids[:FRAMES_MAX] if lane.replayable else (),
        )

    async def _send(self, entries: list[StepEntry]) -> StepReply | None:
        """The same entries until the script answers. None: Redis was away so long that no lease can be left."""
        began = self._clock.monotonic()
        while True:
            try:
                return await self._queue.step(worker_id=self._worker_id, entries=entries, holding=list(self._lanes))
            except RedisError as error:
                log.warning("step_failed", error=type(error).__name__)
            if self._clock.monotonic() - began > LOST_SECONDS:
                for entry in entries:
                    if entry.request_id in self._lanes:
                        self._lanes[entry.request_id].abort(AbortReason.FENCE.value)
                return None
            await asyncio.sleep(RETRY_SECONDS)

    def _sent(self, lane: Lane) -> None:
        sent, lane.in_flight = lane.in_flight, 0
        if lane.request_id not in self._lanes:
            return  # closed meanwhile; its frames were given back there
        del lane.pending[:sent]
        del lane.pending_ids[:sent]
        self._pending -= sent
        lane.next_seq += sent
        if not lane.pending or lane.abort_reason:
            lane.flushed.set()

    def _make_room(self) -> None:
        if self._pending < self._frames_pending_max:
            self._room.set()
