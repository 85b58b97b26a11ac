"""Why a request was refused, kept for a week where its tenant and an operator can look it up by the request's id.

Written by `edge/app.py` after the refusal was answered and by `realtime/responses.py`, read by `edge/requests.py` and
by the console. A refusal costs no database write and no counter: one entry in a stream of its tenant, bounded in length
and time; who could not be told apart (no key, a wrong one) goes into one stream for all. What a store that is away
does not take waits in this process, the newest of it, for as long as the process lives, and is written by `run` once
the store is back. Invariants: best effort, never in a request's way: bounded in time, in how many are written at once
and in how many wait, dropped beyond, and a store that is away is said in the log once a minute at most; an entry holds
what the client was told, without an API key where it sent one as a word of its request.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

import orjson
from redis.asyncio import Redis
from redis.exceptions import RedisError

from contracts.clock import Clock
from contracts.errors import Rejected
from contracts.tenancy import TenantContext
from contracts.text import redacted
from gateway.surface.errors import param_of
from tenants.limits import keys as names

ENTRIES_MAX = 1_000  # of one tenant
KEPT_MS = 7 * 86_400_000
WRITES_MAX = 32  # at once in this process; what comes on top is dropped
WRITE_SECONDS = 0.25
COMPLAINT_SECONDS = 60.0
AGAIN_SECONDS = 2.0
# A stream entry is named by the store's clock, a request id by ours: searched from so long before to so long after.
# What had to wait is dropped once that time is over, for nobody would find it.
SKEW_MS, LATEST_MS = 10_000, 3_600_000
WAITING_MAX = 1_000  # in this process, of all tenants

log = logging.getLogger("weir.gateway.refusals")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One answer that said no. `tenant_id` and its parts are empty when the caller was not known."""

    request_id: str
    at_ms: int
    status: int
    code: str
    message: str
    path: str
    param: str | None = None
    type: str = "invalid_request_error"
    retry_after_ms: int | None = None
    tenant_id: str = ""
    project_id: str = ""
    api_key_id: str = ""


class Refusals:
    """Writes and finds them."""

    def __init__(self, redis: Redis, *, clock: Clock) -> None:
        self._redis = redis
        self._clock = clock
        self._writing = 0
        self._complained_at = -COMPLAINT_SECONDS
        self._waiting: deque[Refusal] = deque(maxlen=WAITING_MAX)

    @property
    def waiting(self) -> int:
        """How many could not be written yet."""
        return len(self._waiting)

    async def note(self, error: Rejected, *, request_id: str, path: str, caller: TenantContext | None) -> None:
        """Keep a refusal. Raises nothing; waits a quarter of a second at most."""
        refusal = Refusal(
            request_id=request_id,
            at_ms=self._clock.now_ms(),
            status=error.status,
            code=error.code,
            message=redacted(error.message),
            path=redacted(path)[:200],
            param=None if (param := param_of(error)) is None else redacted(param),
            type=error.type,
            retry_after_ms=error.retry_after_ms,
            tenant_id=caller.tenant_id if caller else "",
            project_id=caller.project_id if caller else "",
            api_key_id=caller.api_key_id if caller else "",
        )
        if self._writing < WRITES_MAX and not await self._kept(refusal):
            self._waiting.append(refusal)

    async def run(self) -> None:
        """Until cancelled: writes what had to wait, oldest first; one whose answer was lost may stand there twice."""
        while True:
            await asyncio.sleep(AGAIN_SECONDS)
            await self.write_waiting()

    async def write_waiting(self) -> None:
        """One attempt at all that waits; it ends at the first that the store does not take."""
        while self._waiting:
            refusal = self._waiting.popleft()
            is_late = self._clock.now_ms() - refusal.at_ms > LATEST_MS - SKEW_MS
            if not is_late and not await self._kept(refusal):
                if len(self._waiting) < WAITING_MAX:
                    self._waiting.appendleft(refusal)
                return

    async def _kept(self, refusal: Refusal) -> bool:
        self._writing += 1
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                await self._write(refusal)
        except (RedisError, OSError, TimeoutError) as problem:
            self._complain(problem)
            return False
        finally:
            self._writing -= 1
        return True

    async def _write(self, refusal: Refusal) -> None:
        key = names.refused(refusal.tenant_id)
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.xadd(key, {b"d": orjson.dumps(asdict(refusal))}, maxlen=ENTRIES_MAX, approximate=True)
            # Who is refused again and again has one stream for ever: each entry has its own week.
            pipe.xtrim(key, minid=self._clock.now_ms() - KEPT_MS, approximate=False)
            pipe.pexpire(key, KEPT_MS)
            await pipe.execute()

    def _complain(self, problem: Exception) -> None:
        now = self._clock.monotonic()
        if now - self._complained_at >= COMPLAINT_SECONDS:
            self._complained_at = now
            log.warning("refusals are not being kept: %s", type(problem).__name__)

    async def find(self, request_id: str, *, tenant_ids: Sequence[str]) -> Refusal | None:
        """The refusal of a request among tenants and unknown callers. Raises ValueError for what is no id of ours."""
        return await self._among(("", *tenant_ids), request_id)

    async def find_own(self, request_id: str, *, tenant_id: str) -> Refusal | None:
        """The refusal of a request of this tenant's; None for any other, and for what is no id of ours."""
        try:
            return await self._among((tenant_id,), request_id)
        except ValueError:
            return None

    async def _among(self, tenant_ids: Sequence[str], request_id: str) -> Refusal | None:
        minted_ms = UUID(request_id).int >> 80  # UUIDv7 (RFC 9562): its first 48 bits are its time
        first, last = max(0, minted_ms - SKEW_MS), minted_ms + LATEST_MS
        async with self._redis.pipeline(transaction=False) as pipe:
            for tenant_id in tenant_ids:
                pipe.xrange(names.refused(tenant_id), min=first, max=last)
            streams = await pipe.execute()
        found = (_read(entry) for stream in streams for entry in stream)
        return next((refusal for refusal in found if refusal.request_id == request_id), None)

    async def latest(self, *, tenant_id: str, limit: int) -> list[Refusal]:
        """The newest refusals of a tenant; of unknown callers for an empty id."""
        entries: Any = await self._redis.xrevrange(names.refused(tenant_id), count=limit)
        return [_read(entry) for entry in entries]


def _read(entry: tuple[bytes, dict[bytes, bytes]]) -> Refusal:
    document: dict[str, Any] = orjson.loads(entry[1][b"d"])
    return Refusal(**document)
