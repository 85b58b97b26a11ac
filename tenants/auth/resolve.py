"""Step 2, AUTH: a bearer key becomes a TenantContext. Called by the gateway for every request.

The cache is bounded, and a warm key costs one HMAC and one dictionary look-up: no database. It is never the authority:
the epochs in the context are checked by the hold script, so a revoked key fails there although it is still here.
Unknown, malformed and revoked keys get the same error. Fails closed: with PostgreSQL away, a key that was good within
the last `STALE_SECONDS` keeps serving and any other is `Unavailable`.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

from contracts.clock import Clock
from contracts.errors import AuthFailed, Rejected, Unavailable
from contracts.tenancy import TenantContext
from tenants.auth.keys import digest, looks_valid

FRESH_SECONDS = 60.0
# Beyond this age a refresh is waited for; before it, others are served while one request refreshes.
PATIENT_SECONDS = 120.0
STALE_SECONDS = 15 * 60.0
NEGATIVE_SECONDS = 5.0
LOAD_TIMEOUT_SECONDS = 3.0
LOAD_AGAIN_SECONDS = 2.0
LOADS_AT_ONCE_MAX = 64
ENTRIES_MAX = 50_000
# Unknown keys share a smaller room, so that a guesser cannot push good keys out.
NEGATIVE_ENTRIES_MAX = 5_000

# Given the digests of one key under each pepper, the newest first. Returns None for a key that is unknown, revoked or
# expired. May raise Rejected: tenant suspended, Unavailable.
Load = Callable[[Sequence[str]], Awaitable[TenantContext | None]]


@dataclass(slots=True)
class _Entry:
    context: TenantContext
    loaded_at: float
    sequence: int
    again_at: float = 0.0  # after a load that failed: until then the old context serves without another try


@dataclass(slots=True)
class _Refusal:
    error: Rejected
    until: float


def unknown_key() -> AuthFailed:
    """The one answer for malformed, unknown, revoked and expired keys. It never repeats the key."""
    return AuthFailed("Incorrect API key provided. Keys begin with `weir_`; make one in the admin.")


class Resolver:
    """A bounded TTL cache in front of `load`, asked once at a time per key. One event loop; not for threads."""

    def __init__(self, load: Load, *, clock: Clock, peppers: Sequence[bytes]) -> None:
        """`peppers`: secrets under which keys may be stored, the newest first; a warm key costs one digest only."""
        self._load = load
        self._clock = clock
        self._pepper, *self._older = peppers
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._refusals: OrderedDict[str, _Refusal] = OrderedDict()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._gate = asyncio.Semaphore(LOADS_AT_ONCE_MAX)
        self._sequence = 0
        self._forgets = 0
        self._deaf = False

    async def resolve(self, bearer: str) -> TenantContext:
        """The context of a key. Raises AuthFailed, PermissionDenied (tenant suspended), Unavailable."""
        if not looks_valid(bearer):
            raise unknown_key()
        key_digest = digest(bearer, self._pepper)
        entry = self._entries.get(key_digest)
        if entry is not None and self._serves(entry, being_loaded=key_digest in self._locks):
            self._entries.move_to_end(key_digest)
            return self._unexpired(entry.context)
        self._raise_known_refusal(key_digest)
        return self._unexpired(await self._refresh(key_digest, bearer))

    async def reload(self, bearer: str) -> TenantContext:
        """As `resolve`, but never from what was cached before the call: after EpochUnknown from the hold script."""
        if not looks_valid(bearer):
            raise unknown_key()
        return self._unexpired(await self._refresh(digest(bearer, self._pepper), bearer))

    def forget(self, *, api_key_id: str) -> None:
        """Drop what is cached of one key."""
        self._drop([name for name, entry in self._entries.items() if entry.context.api_key_id == api_key_id])

    def forget_tenant(self, *, tenant_id: str) -> None:
        """Drop what is cached of a tenant's keys: called for each `Revocation` message."""
        self._drop([name for name, entry in self._entries.items() if entry.context.tenant_id == tenant_id])

    def lose_news(self) -> None:
        """No news of revocations arrives: from here on a key is read for each request, unless PostgreSQL is away."""
        self._deaf = True

    def hear_news(self) -> None:
        """News arrives again, and some may have been missed: each key is read once more before it serves.

        With PostgreSQL away they go on as before, up to `STALE_SECONDS` less `PATIENT_SECONDS`.
        """
        self._deaf = False
        self._forgets += 1
        long_ago = self._clock.monotonic() - PATIENT_SECONDS
        for entry in self._entries.values():
            entry.loaded_at = min(entry.loaded_at, long_ago)
            entry.again_at = 0.0

    def _unexpired(self, context: TenantContext) -> TenantContext:
        """A key ends at its time, whatever is cached and whether PostgreSQL is there or not."""
        if context.expires_at_ms is not None and self._clock.now_ms() >= context.expires_at_ms:
            raise unknown_key()
        return context

    def _serves(self, entry: _Entry, *, being_loaded: bool) -> bool:
        now = self._clock.monotonic()
        if self._deaf:
            return now < entry.again_at
        age = now - entry.loaded_at
        return age < FRESH_SECONDS or (age < PATIENT_SECONDS and being_loaded) or now < entry.again_at

    async def _refresh(self, key_digest: str, bearer: str) -> TenantContext:
        started = self._sequence
        lock = self._locks.setdefault(key_digest, asyncio.Lock())
        async with lock:
            entry = self._entries.get(key_digest)
            if entry is not None and (entry.sequence > started or self._clock.monotonic() < entry.again_at):
                return entry.context
            if self._sequence > started:
                self._raise_known_refusal(key_digest)
            return await self._load_now(key_digest, bearer)

    async def _load_now(self, key_digest: str, bearer: str) -> TenantContext:
        forgets = self._forgets
        digests = [key_digest, *(digest(bearer, pepper) for pepper in self._older)]
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_SECONDS), self._gate:
                context = await self._load(digests)
        except (Unavailable, TimeoutError) as error:
            return self._from_before(key_digest, error)
        except Rejected as error:
            self._refuse(key_digest, error, NEGATIVE_SECONDS)
            raise
        self._sequence += 1
        if context is None:
            refusal = unknown_key()
            self._refuse(key_digest, refusal, NEGATIVE_SECONDS)
            raise refusal
        self._refusals.pop(key_digest, None)
        # A load that a revocation overtook may be older than it: it serves this request (the hold script checks it)
        # and is not kept.
        if forgets == self._forgets:
            self._keep(key_digest, context)
        return context

    def _from_before(self, key_digest: str, error: Exception) -> TenantContext:
        """The database is away: a key that was good lately goes on, any other is told to come back."""
        entry = self._entries.get(key_digest)
        now = self._clock.monotonic()
        if entry is not None and now - entry.loaded_at < STALE_SECONDS:
            entry.again_at = min(now + LOAD_AGAIN_SECONDS, entry.loaded_at + STALE_SECONDS)
            return entry.context
        self._sequence += 1
        unavailable = Unavailable("API keys cannot be checked right now.", retry_after_ms=2_000)
        self._refuse(key_digest, unavailable, LOAD_AGAIN_SECONDS)
        raise unavailable from error

    def _keep(self, key_digest: str, context: TenantContext) -> None:
        self._entries[key_digest] = _Entry(context=context, loaded_at=self._clock.monotonic(), sequence=self._sequence)
        self._entries.move_to_end(key_digest)
        if len(self._entries) > ENTRIES_MAX:
            self._entries.popitem(last=False)

    def _refuse(self, key_digest: str, error: Rejected, seconds: float) -> None:
        self._sequence += 1
        if not isinstance(error, Unavailable):
            self._entries.pop(key_digest, None)
        self._refusals[key_digest] = _Refusal(error=error, until=self._clock.monotonic() + seconds)
        self._refusals.move_to_end(key_digest)
        if len(self._refusals) > NEGATIVE_ENTRIES_MAX:
            self._refusals.popitem(last=False)

    def _raise_known_refusal(self, key_digest: str) -> None:
        refusal = self._refusals.get(key_digest)
        if refusal is None:
            return
        if self._clock.monotonic() >= refusal.until:
            del self._refusals[key_digest]
            return
        known = refusal.error
        # A new one each time: an exception that is raised twice collects the tracebacks of both.
        raise type(known)(known.message, code=known.code, retry_after_ms=known.retry_after_ms)

    def _drop(self, names: list[str]) -> None:
        self._forgets += 1
        for name in names:
            del self._entries[name]
