"""Step 2, AUTH: a bearer key becomes a TenantContext. Called by the gateway for every request.

The cache is bounded, and a warm key costs one HMAC and one dictionary look-up: no database. It is never the authority:
the epochs in the context are checked by the hold script, so a revoked key fails there although it is still here.
Unknown, malformed and revoked keys get the same error. Fails closed: with PostgreSQL away, a key that was good within
the last `STALE_SECONDS` keeps serving and any other is `Unavailable`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from contracts.clock import Clock
from contracts.errors import AuthFailed, Rejected, Unavailable
from contracts.tenancy import TenantContext
from tenants.auth.keys import digest, looks_valid

FRESH_SECONDS = 60.0
STALE_SECONDS = 15 * 60.0
NEGATIVE_SECONDS = 5.0
LOAD_TIMEOUT_SECONDS = 3.0
ENTRIES_MAX = 50_000
# Unknown keys share a smaller room, so that a guesser cannot push good keys out.
NEGATIVE_ENTRIES_MAX = 5_000
LOADS_AT_ONCE_MAX = 16

_log = logging.getLogger(__name__)

# Returns None for a key that is unknown, revoked or expired; may raise Rejected (tenant suspended).
Load = Callable[[str], Awaitable[TenantContext | None]]


@dataclass(slots=True)
class _Entry:
    context: TenantContext
    loaded_at: float
    checked_at: float  # last attempt; after a failed one the next is not made at once


@dataclass(slots=True)
class _Refusal:
    error: Rejected
    until: float


def unknown_key() -> AuthFailed:
    """The one answer for malformed, unknown, revoked and expired keys. It never repeats the key."""
    return AuthFailed("Incorrect API key provided. Keys begin with `weir_`; make one in the admin.")


class Resolver:
    """A bounded TTL cache in front of `load`. One event loop; not for threads."""

    def __init__(self, load: Load, *, clock: Clock, pepper: bytes) -> None:
        self._load = load
        self._clock = clock
        self._pepper = pepper
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._refusals: OrderedDict[str, _Refusal] = OrderedDict()
        self._loading: dict[str, asyncio.Future[TenantContext]] = {}
        self._gate = asyncio.Semaphore(LOADS_AT_ONCE_MAX)

    async def resolve(self, bearer: str) -> TenantContext:
        """The context of a key. Raises AuthFailed, PermissionDenied (tenant suspended), Unavailable."""
        if not looks_valid(bearer):
            raise unknown_key()
        key_digest = digest(bearer, self._pepper)
        now = self._clock.monotonic()
        entry = self._entries.get(key_digest)
        if entry is not None and now - entry.loaded_at < FRESH_SECONDS:
            self._entries.move_to_end(key_digest)
            return entry.context
        refusal = self._refusals.get(key_digest)
        if refusal is not None and now < refusal.until:
            raise refusal.error.with_traceback(None)
        return await self._fetch(key_digest)

    async def reload(self, bearer: str) -> TenantContext:
        """As `resolve`, but past the cache: after EpochUnknown from the hold script."""
        if not looks_valid(bearer):
            raise unknown_key()
        key_digest = digest(bearer, self._pepper)
        self._refusals.pop(key_digest, None)
        return await self._fetch(key_digest)

    def forget(self, *, api_key_id: str) -> None:
        """Drop what is cached of one key: called for each message on the revocation channel."""
        for key_digest in [d for d, e in self._entries.items() if e.context.api_key_id == api_key_id]:
            del self._entries[key_digest]

    def forget_tenant(self, *, tenant_id: str) -> None:
        """Drop what is cached of every key of one tenant: it was suspended, or its limits changed."""
        for key_digest in [d for d, e in self._entries.items() if e.context.tenant_id == tenant_id]:
            del self._entries[key_digest]

    async def _fetch(self, key_digest: str) -> TenantContext: ...
