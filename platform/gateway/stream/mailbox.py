"""One subscription per gateway process; released frames fan out to bounded inboxes. Step 7; read by `relay.py`.

Invariants: an inbox never holds more than its bytes; a lost message, a reconnect or a shape that this release cannot
read only ever costs a look at the log (`RESYNC`), never a token; the subscription comes back by itself for ever.
"""

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from contracts.wire import WireError
from fairqueue.messages import Ended, Released, decode_mailbox
from stores.subscription import Listen

log = logging.getLogger("weir.gateway.mailbox")

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
        self._reader: asyncio.Future[None] | None = None  # while it waits
        self._patient_until = 0.0
        self._timer: asyncio.TimerHandle | None = None
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
        self._wake()

    def interrupt(self) -> None:
        """The client is gone: the reader hears of it next, whatever else waits."""
        self._entries.appendleft(Signal.GONE)
        self._wake()

    def revoke(self) -> None:
        """The key is revoked: the reader hears of it next, and gives nothing more out."""
        self._entries.appendleft(Signal.REVOKED)
        self._wake()

    async def get(self, *, seconds: float) -> Entry | None:
        """The next entry; None when there was none for so long."""
        if not self._entries:
            await self._wait(seconds)
            if not self._entries:
                return None
        entry = self._entries.popleft()
        self._bytes -= _size(entry)
        return entry

    async def _wait(self, seconds: float) -> None:
        """One timer serves many waits: an entry comes long before, so most of them would be made to be cancelled."""
        loop = asyncio.get_running_loop()
        self._patient_until = loop.time() + seconds
        if self._timer is not None and self._timer.when() > self._patient_until:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = loop.call_at(self._patient_until, self._tick, loop)
        self._reader = loop.create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ends the wait whose time is over; one that began later gets the rest of its own."""
        self._timer = None
        if self._reader is None:
            return
        if loop.time() >= self._patient_until:
            self._wake()
        else:
            self._timer = loop.call_at(self._patient_until, self._tick, loop)

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


def _size(entry: Entry) -> int:
    if isinstance(entry, Released):
        return _ENTRY_OVERHEAD_BYTES + sum(map(len, entry.frames))
    return _ENTRY_OVERHEAD_BYTES


@dataclass(kw_only=True)
class Mailbox:
    """The gateway's one subscription on `channel`."""

    channel: str
    listen: Listen
    inbox_bytes: int = 1_048_576
    subscribed: asyncio.Event = field(default_factory=asyncio.Event)
    _inboxes: dict[str, list[Inbox]] = field(default_factory=dict)

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
        """Subscribes and listens until cancelled."""
        await self.listen(
            channel=self.channel,
            on_subscribed=self._found,
            on_lost=self.subscribed.clear,
            on_message=self.deliver,
        )

    def _found(self) -> None:
        self._resync()
        self.subscribed.set()

    def _resync(self) -> None:
        for readers in self._inboxes.values():
            for inbox in readers:
                inbox.put(Signal.RESYNC)
