"""Released frames of one request: each once, in order, from the mailbox, with the log as the truth. Step 7.

Called by `edge/answers.py` and `realtime/`. Invariants: seq has no gap and no repeat whatever the mailbox lost,
doubled or reordered; frames that do not continue what this reader was given (a failover that lost writes) raise
`StreamDiverged` instead of being spliced in.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass

from redis.exceptions import RedisError

from contracts.errors import Revoked, WorkerLost
from fairqueue.messages import Ended, Final, LogSlice, Released
from fairqueue.queue import FairQueue
from gateway.stream.mailbox import Entry, Inbox, Signal

LOG_PAGE_FRAMES = 512
SLOW_PAGE_FRAMES = 64  # of a reader that is behind: what it has not read stays in the log
SLOW_LOOK_SECONDS = 0.5
COMPARED_FRAMES = 16
LOOK_BEATS = 3
LOG_READ_SECONDS = 6.0
LOG_AWAY_SECONDS = 15.0  # a store that restarts on its append-only file is back before that
LOG_AGAIN_SECONDS = 0.2
CUT_END_SECONDS = 0.45  # with `revocation.CUT_SECONDS` within the second that a cut may take


class StreamDiverged(WorkerLost):
    """The log does not continue what was sent: output was lost in a failover."""

    code = "stream_diverged"


class Cut(Revoked):
    """The key was revoked while the request ran. `final`: its end and its bill, where the pool told it in time."""

    def __init__(self, final: Final | None) -> None:
        super().__init__("this API key was revoked, or its organization suspended, while the request ran")
        self.final = final


class ClientLost(Exception):
    """The client closed the connection while its request ran."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive frames; the seq of frame i is `first_seq + i`."""

    epoch: str
    first_seq: int
    frames: list[bytes]


class Relay:
    """One reader's view of one request. `after_seq` = the last seq that the client already has."""

    def __init__(self, *, queue: FairQueue, inbox: Inbox, after_seq: int = 0) -> None:
        self._queue = queue
        self._inbox = inbox
        self._sent = after_seq
        self._last: deque[bytes] = deque(maxlen=COMPARED_FRAMES)
        self._epochs: set[str] = set()
        self._behind = False
        self._slow = False  # its inbox overflowed: from there on it reads the log alone
        self._silent = 0
        self.epoch = ""
        self.final: Final | None = None

    async def batches(
        self, *, beat_seconds: float, from_log: bool, first_beat_seconds: float | None = None
    ) -> AsyncIterator[Batch | None]:
        """Batches until the request's end, then `final` is set. None = nothing came for `beat_seconds`.

        `first_beat_seconds`: the same until the first item, where that is another time.

        `from_log` reads what the log holds first (a resume or a repeated request). A reader that is slower than its
        answer loses nothing: the log is its buffer, and is read no faster than batches are taken. Raises
        StreamDiverged, ClientLost, WorkerLost, Cut.
        """
        self._behind = from_log
        silent_seconds, beat = 0.0, beat_seconds if first_beat_seconds is None else first_beat_seconds
        while True:
            if self._behind:
                self._behind = False
                async for batch in self._catch_up():
                    beat = beat_seconds
                    yield batch
            if self.final is not None:
                return
            patience = min(beat, SLOW_LOOK_SECONDS) if self._slow else beat
            sent = self._sent
            entry = await self._inbox.get(seconds=patience)
            if entry is Signal.REVOKED:
                raise Cut(await self._end_of_the_cut())
            fresh = self._take(entry)
            silent_seconds = 0.0 if self._sent > sent else silent_seconds + patience
            if fresh is not None or (entry is None and silent_seconds >= beat):
                silent_seconds, beat = 0.0, beat_seconds
                yield fresh

    def _take(self, entry: Entry | None) -> Batch | None:
        """What an entry adds. What it cannot tell leaves `_behind` set: then the log is read."""
        self._silent = self._silent + 1 if entry is None else 0
        if entry is None:
            # A message may be lost without a trace: look, seldom. A slow reader has nothing but the log.
            self._behind = self._slow or self._silent % LOOK_BEATS == 0
        elif entry is Signal.GONE:
            raise ClientLost
        elif entry is Signal.OVERFLOW:
            self._slow = self._behind = True
        elif isinstance(entry, Released) and self._continues(entry):
            self._epochs.add(entry.epoch)
            frames = entry.frames[self._sent + 1 - entry.first_seq :]
            return self._advance(entry.epoch, frames) if frames else None
        elif isinstance(entry, Ended) and entry.last_seq == self._sent and self._knows(entry.epoch):
            self.epoch, self.final = entry.epoch, entry.final
        else:  # a gap, a resync, an end past what was seen, or a writer that may not continue what was sent
            self._behind = True
        return None

    async def _end_of_the_cut(self) -> Final | None:
        """The end of a request that was cancelled for its key; what still comes of its text is given to nobody."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CUT_END_SECONDS):
                while not isinstance(entry := await self._inbox.get(seconds=CUT_END_SECONDS), Ended):
                    pass
                return entry.final
        return None

    def _continues(self, entry: Released) -> bool:
        """Whether an entry follows what was sent. One of another writer than before is left to the log.

        That it begins right after what was sent proves nothing: a failover may have lost the end of what was sent, and
        the mailbox what the writer put in its place. So each new writer costs one look, which compares.
        """
        return self._knows(entry.epoch) and entry.first_seq <= self._sent + 1

    def _knows(self, epoch: str) -> bool:
        """Whether what this writer continues is what was sent: by the log, or because nothing was."""
        return epoch in self._epochs or self._sent == 0

    def _advance(self, epoch: str, frames: list[bytes]) -> Batch:
        batch = Batch(epoch=epoch, first_seq=self._sent + 1, frames=frames)
        self._sent += len(frames)
        self._last.extend(frames[-COMPARED_FRAMES:])
        self.epoch = epoch
        return batch

    async def _catch_up(self) -> AsyncIterator[Batch]:
        """Reads the log from where we are to its end; the frames just sent are read again and compared."""
        while True:
            limit = len(self._last) + SLOW_PAGE_FRAMES if self._slow else LOG_PAGE_FRAMES
            piece = await self._read(after_seq=self._sent - len(self._last), limit=limit)
            sent_again, fresh = piece.frames[: len(self._last)], piece.frames[len(self._last) :]
            if sent_again != list(self._last):
                raise StreamDiverged("output was lost in a failover; the log does not continue the answer")
            self._epochs.add(piece.epoch)
            if fresh:
                yield self._advance(piece.epoch, fresh)
            if len(piece.frames) >= limit:
                continue
            if piece.final is not None:
                self.epoch = piece.epoch
                self.final = piece.final
            return

    async def _read(self, *, after_seq: int, limit: int) -> LogSlice:
        """A Redis that restarts is waited for: the request runs on meanwhile, and what it makes is in the log."""
        now = asyncio.get_running_loop().time
        until = now() + LOG_AWAY_SECONDS
        while True:
            try:
                async with asyncio.timeout(LOG_READ_SECONDS):
                    piece = await self._queue.read_log(
                        request_id=self._inbox.request_id, after_seq=after_seq, limit=limit
                    )
                break
            except (RedisError, OSError, TimeoutError) as error:
                if now() >= until:
                    raise WorkerLost("the request's log cannot be read now; ask for its events again") from error
            await asyncio.sleep(LOG_AGAIN_SECONDS)
        if piece is None:
            raise WorkerLost("the queue no longer knows this request")
        return piece
