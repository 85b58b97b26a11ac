"""One subscription per gateway process; released frames fan out to bounded inboxes. Step 7; read by `relay.py`.

Invariants: an inbox never holds more than its bytes; a lost message, a reconnect or a shape that this release cannot
read only ever costs a look at the log (`RESYNC`), never a token; the subscription comes back by itself for ever.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from contracts.wire import WireError
from fairqueue.messages import Ended, Released, decode_mailbox

log = logging.getLogger("weir.gateway.mailbox")

SILENCE_PING_SECONDS = 5.0
SILENCE_DEAD_SECONDS = 15.0
BACKOFF_FIRST_SECONDS = 0.05
BACKOFF_MOST_SECONDS = 2.0
CLOSE_SECONDS = 1.0
_ENTRY_OVERHEAD_BYTES = 200


class Signal(Enum):
    """What an inbox tells its reader besides frames."""

    RESYNC = "resync"  # messages may be missing: read the log
    OVERFLOW = "overflow"  # the reader is too slow: its frames were let go
    GONE = "gone"  # the client closed the connection
    REVOKED = "revoked"  # its key was revoked, or its tenant suspended


Entry = Released | Ended | Signal


class Inbox:
    """Entries of one request for one reader, bounded by bytes. One event loop; not for threads."""

    def __init__(self, *, request_id: str, bytes_max: int) -> None:
        self.request_id = request_id
        self._bytes_max = bytes_max
        self._entries: deque[Entry] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()
        self._overflown = False

    def put(self, entry: Entry) -> None:
        """Never waits. Past the bound everything is let go and the reader is told, once."""
        if self._overflown:
            return
        self._bytes += _size(entry)
        if self._bytes > self._bytes_max:
            self._overflown = True
            self._entries.clear()
            entry = Signal.OVERFLOW
        self._entries.append(entry)
        self._wake.set()

    def interrupt(self) -> None:
        """The client is gone: the reader hears of it next, whatever else waits."""
        self._entries.appendleft(Signal.GONE)
        self._wake.set()

    def revoke(self) -> None:
        """The key is revoked: the reader hears of it next, and gives nothing more out."""
        self._entries.appendleft(Signal.REVOKED)
        self._wake.set()

    async def get(self, *, seconds: float) -> Entry | None:
        """The next entry; None when there was none for so long."""
        if not self._entries:
            self._wake.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
            except TimeoutError:
                return None
        entry = self._entries.popleft()
        self._bytes -= _size(entry)
        return entry


def _size(entry: Entry) -> int:
    if isinstance(entry, Released):
        return _ENTRY_OVERHEAD_BYTES + sum(map(len, entry.frames))
    return _ENTRY_OVERHEAD_BYTES


@dataclass(kw_only=True)
class Mailbox:
    """The gateway's one subscription on `channel`. `connect` opens a client whose reads may wait for ever."""

    channel: str
    connect: Callable[[], Redis]
    inbox_bytes: int = 1_048_576
    subscribed: asyncio.Event = field(default_factory=asyncio.Event)
    _inboxes: dict[str, list[Inbox]] = field(default_factory=dict)
    _jitter: random.Random = field(default_factory=random.Random)

    def open(self, request_id: str) -> Inbox:
        """An inbox for a request; several may be open for one (a stream and its resume)."""
        inbox = Inbox(request_id=request_id, bytes_max=self.inbox_bytes)
        self._inboxes.setdefault(request_id, []).append(inbox)
        return inbox

    def close(self, inbox: Inbox) -> None:
        """Lets an inbox go; closing it twice is harmless."""
        readers = self._inboxes.get(inbox.request_id, [])
        if inbox in readers:
            readers.remove(inbox)
        if not readers:
            self._inboxes.pop(inbox.request_id, None)

    @property
    def open_inboxes(self) -> int:
        return sum(map(len, self._inboxes.values()))

    def deliver(self, data: bytes) -> None:
        """Hands one published message to the inboxes that wait for its requests."""
        try:
            entries = decode_mailbox(data)
        except WireError:
            log.exception("a mailbox message could not be read: every open stream reads its log")
            self._resync()
            return
        for entry in entries:
            for inbox in self._inboxes.get(entry.request_id, ()):
                inbox.put(entry)

    async def run(self) -> None:
        """Subscribes and listens until cancelled. A lost connection is opened again with growing pauses."""
        failures = 0
        while True:
            try:
                await self._listen()
            except (RedisError, OSError, TimeoutError) as error:
                failures = 1 if self.subscribed.is_set() else failures + 1
                self.subscribed.clear()
                pause = min(BACKOFF_MOST_SECONDS, BACKOFF_FIRST_SECONDS * 2 ** min(failures, 8))
                log.warning("mailbox subscription lost (%s); again in %.2f s", type(error).__name__, pause)
                await asyncio.sleep(pause * self._jitter.uniform(0.5, 1.0))

    async def _listen(self) -> None:
        client = self.connect()
        pubsub = client.pubsub()
        try:
            async with asyncio.timeout(SILENCE_PING_SECONDS):
                await pubsub.subscribe(self.channel)
            await self._confirmed(pubsub)
            self._resync()
            self.subscribed.set()
            await self._read_on(pubsub)
        finally:
            with suppress(RedisError, OSError, TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await pubsub.aclose()  # type: ignore[no-untyped-call]
                    await client.aclose()

    async def _confirmed(self, pubsub: PubSub) -> None:
        """Waits for the server's word that the channel is ours: what is published from here on reaches us."""
        async with asyncio.timeout(SILENCE_PING_SECONDS):
            while True:
                message = await pubsub.get_message(timeout=SILENCE_PING_SECONDS)
                if message is not None and message["type"] == "subscribe":
                    return

    async def _read_on(self, pubsub: PubSub) -> None:
        silent = 0.0
        while True:
            message = await pubsub.get_message(timeout=SILENCE_PING_SECONDS)
            if message is None:
                silent += SILENCE_PING_SECONDS
                if silent >= SILENCE_DEAD_SECONDS:
                    raise TimeoutError("the subscription does not answer")
                await pubsub.ping()
                continue
            silent = 0.0
            if message["type"] == "message":
                self.deliver(message["data"])

    def _resync(self) -> None:
        for readers in self._inboxes.values():
            for inbox in readers:
                inbox.put(Signal.RESYNC)
