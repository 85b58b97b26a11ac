"""Cuts what a revoked key or a suspended tenant has under way, within a second. Steps 2 and 7; run by `services.run`.

The hold script alone decides who gets in; this is about what got in before. A message on `w:revoked` makes the gateway
forget the tenant's cached contexts, end its own answers with an error, and cancel their requests in the pools; one
gateway also cancels what nobody reads. Invariants: a lost message, a lost connection or a restarted Redis only delays
this: at each subscription the epochs of tenants with open answers are read from PostgreSQL, every `RECHECK_SECONDS`
those in Redis are looked at, and while nothing is heard each request reads its key anew; what was released
before the cut is billed, once, by the request's end.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from redis.asyncio import Redis
from redis.exceptions import RedisError

from contracts.errors import Unavailable
from contracts.jobs import Ticket
from contracts.wire import WireError, decode
from fairqueue.messages import AbortReason
from fairqueue.queue import FairQueue
from gateway.stream.mailbox import Inbox
from stores.subscription import Listen
from tenants.auth.resolve import Resolver
from tenants.limits.buckets import Limits
from tenants.limits.keys import REVOKED_CHANNEL
from tenants.limits.revocation import Revocation

log = logging.getLogger("weir.gateway.revocation")

RECHECK_SECONDS = 10.0
STORE_SECONDS = 2.0
CUT_SECONDS = 0.5
CANCEL_TRIES = 3
CANCELS_AT_ONCE = 32
NEWS_MAX = 10_000
_FOUND = b"found"  # no message: this gateway hears again, for the first time or after a loss
AGAIN_SECONDS = 0.5
SWEPT_MS = 10_000  # one gateway sweeps for a message; its repetition later is swept again


@dataclass(frozen=True, slots=True)
class Target:
    """One request to be cancelled in its pool."""

    request_id: str
    pool: str


class Running:
    """The open answers of this gateway and whose they are. An entry ends with its inbox."""

    def __init__(self) -> None:
        self._owners: WeakKeyDictionary[Inbox, Ticket] = WeakKeyDictionary()

    def note(self, inbox: Inbox, ticket: Ticket) -> None:
        """Called when a reader is attached to a request."""
        self._owners[inbox] = ticket

    def keys_by_tenant(self) -> dict[str, set[str]]:
        """Tenant -> keys with an open answer here."""
        found: dict[str, set[str]] = {}
        for ticket in list(self._owners.values()):
            found.setdefault(ticket.tenant_id, set()).add(ticket.api_key_id)
        return found

    def of(self, *, tenant_id: str, key_ids: Iterable[str] | None) -> dict[Inbox, Target]:
        """The open answers of these keys (None: all of the tenant's)."""
        wanted = None if key_ids is None else set(key_ids)
        return {
            inbox: Target(ticket.request_id, ticket.pool)
            for inbox, ticket in list(self._owners.items())
            if ticket.tenant_id == tenant_id and (wanted is None or ticket.api_key_id in wanted)
        }


@dataclass(kw_only=True)
class Revocations:
    """One subscription per gateway."""

    listen: Listen
    redis: Redis
    limits: Limits
    queue_of: Callable[[str], FairQueue]
    resolver: Resolver
    refresh_epochs: Callable[[str], Awaitable[None]]  # of a tenant, in Redis from PostgreSQL
    running: Running
    subscribed: asyncio.Event = field(default_factory=asyncio.Event)
    _news: "asyncio.Queue[bytes]" = field(default_factory=lambda: asyncio.Queue(NEWS_MAX))

    async def run(self) -> None:
        """Listens until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._work())
            await self.listen(
                channel=REVOKED_CHANNEL,
                on_subscribed=self._found,
                on_lost=self._lost,
                on_message=self._note,
            )

    def _found(self) -> None:
        """Messages were missed, maybe with the epochs that they told of: what Redis lost, PostgreSQL has."""
        self.resolver.hear_news()
        self._note(_FOUND)
        self.subscribed.set()

    def _lost(self) -> None:
        self.resolver.lose_news()
        self.subscribed.clear()

    def _note(self, message: bytes) -> None:
        """More than can wait are found by the next look at all keys."""
        try:
            self._news.put_nowait(message)
        except asyncio.QueueFull:
            log.warning("more than %d revocations wait", NEWS_MAX)

    async def _work(self) -> None:
        """Acts on what is heard; looks at every open key at each subscription, after a failure, and now and then."""
        while True:
            message: bytes | None = None
            with suppress(TimeoutError):
                async with asyncio.timeout(RECHECK_SECONDS):
                    message = await self._news.get()
            try:
                if message is None:
                    await self._recheck()
                elif message is _FOUND:
                    await self._refresh()
                    await self._recheck()
                else:
                    await self._take(message)
            except (RedisError, OSError, TimeoutError, Unavailable) as error:
                log.warning("a revocation waits for the stores (%s)", type(error).__name__)
                await asyncio.sleep(AGAIN_SECONDS)
                self._note(message or _FOUND)

    async def _refresh(self) -> None:
        """The epochs of every tenant with an open answer here. One that cannot be read now is read again later."""
        for tenant_id in self.running.keys_by_tenant():
            await self.refresh_epochs(tenant_id)

    async def _take(self, data: bytes) -> None:
        try:
            message = decode(Revocation, data)
        except WireError:
            log.exception("a revocation could not be read: every open key is looked at")
            await self._recheck()
            return
        self.resolver.forget_tenant(tenant_id=message.tenant_id)
        if not message.suspended and not message.revoked_keys:
            return
        key_ids = None if message.suspended else message.revoked_keys
        mine = self.running.of(tenant_id=message.tenant_id, key_ids=key_ids)
        await self._cut(mine)
        if await self._sweeps(data):
            await self._cancel(await self._open_of(message) - set(mine.values()))

    async def _sweeps(self, data: bytes) -> bool:
        """Whether it falls to this gateway to cancel what no gateway reads."""
        name = f"{REVOKED_CHANNEL}:{hashlib.sha256(data).hexdigest()}"
        async with asyncio.timeout(STORE_SECONDS):
            return bool(await self.redis.set(name, b"1", nx=True, px=SWEPT_MS))

    async def _open_of(self, message: Revocation) -> set[Target]:
        return {
            Target(hold.request_id, hold.pool)
            async for hold in self.limits.open_holds(tenant_id=message.tenant_id)
            if message.suspended or hold.api_key_id in message.revoked_keys
        }

    async def _recheck(self) -> None:
        """What a lost message would have said, for every key with an open answer here."""
        for tenant_id, key_ids in self.running.keys_by_tenant().items():
            blocked = await self.limits.blocked_keys(tenant_id=tenant_id, key_ids=sorted(key_ids))
            if blocked:
                self.resolver.forget_tenant(tenant_id=tenant_id)
                await self._cut(self.running.of(tenant_id=tenant_id, key_ids=blocked))

    async def _cut(self, mine: dict[Inbox, Target]) -> None:
        """Cancels in the pools, which say why; then ends the answers, soon also where a pool does not answer."""
        targets, told = set(mine.values()), False
        try:
            async with asyncio.timeout(CUT_SECONDS):
                await self._cancel(targets)
            told = True
        except TimeoutError:
            log.warning("the pools of %d requests of a revoked key do not answer; their answers end first", len(mine))
        for inbox in mine:
            inbox.revoke()
        if not told:
            await self._cancel(targets)

    async def _cancel(self, targets: set[Target]) -> None:
        gate = asyncio.Semaphore(CANCELS_AT_ONCE)

        async def one(target: Target) -> None:
            async with gate:
                await self._cancel_one(target)

        async with asyncio.TaskGroup() as tasks:
            for target in targets:
                tasks.create_task(one(target))

    async def _cancel_one(self, target: Target) -> None:
        """Whatever its generation: nobody may attach to it again. A failure is found by the next look."""
        for _ in range(CANCEL_TRIES):
            try:
                async with asyncio.timeout(STORE_SECONDS):
                    await self.queue_of(target.pool).cancel(
                        request_id=target.request_id, generation=None, reason=AbortReason.REVOKED.value
                    )
            except (RedisError, OSError, TimeoutError):
                continue
            return
        log.warning("request %s: its key was revoked and it could not be cancelled", target.request_id)
