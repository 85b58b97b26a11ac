"""Step 3, LIMITS: `Limits`, the async door to the {tenant} slot. Called by admission, workers and the settler.

Invariants: a cap is never passed under any interleaving; a refused request changes no counter; each hold ends once.
Fails closed: when Redis is away or slow, every method raises `Unavailable` in time, behind a breaker (`gate.py`).
"""

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from contracts.clock import Clock
from contracts.errors import Unavailable
from contracts.tenancy import Limit, Metric
from contracts.tokens import TokenCounts
from stores.lua import load_scripts
from stores.redis import Client
from stores.system import SystemClock
from tenants.limits import calls, policy
from tenants.limits import keys as names
from tenants.limits.gate import RETRY_AFTER_MS, Gate
from tenants.limits.holds import (
    BeingRebuilt,
    DueHold,
    HoldExisting,
    HoldGranted,
    HoldHint,
    HoldRequest,
    HoldState,
    Idempotency,
    LimitUse,
    OpenHold,
    Settled,
)
from tenants.limits.policy import Window

SETTLED_TTL_MS = 6 * 3_600_000
RUNNING_LOOK_MS = 600_000
WINDOW_RETRIES = 3
ZONES_MAX = 1_024
OPEN_PAGE = 200
log = logging.getLogger("weir.limits")
_SCRIPTS = load_scripts(Path(__file__).parent / "scripts")


class Limits:
    """All writes are single scripts, idempotent by request id. `settled_ttl_ms`: how long a result is remembered."""

    def __init__(
        self, redis: Client, *, clock: Clock | None = None, settled_ttl_ms: int = SETTLED_TTL_MS, time_ms: int = 0
    ) -> None:
        """`time_ms` overrides the server's own clock in the scripts (tests); 0 leaves it."""
        self._redis = redis
        self._clock = clock or SystemClock()
        self.gate = Gate(self._clock)
        self._settled_ttl_ms = settled_ttl_ms
        self.time_ms = time_ms
        self._windows: dict[tuple[str, bool], Window] = {}
        self._run = {name: script.bind(redis) for name, script in _SCRIPTS.items()}

    async def hold(self, request: HoldRequest) -> HoldGranted | HoldExisting:
        """Hold the worst case of a request in every limit, or in none.

        Raises RateLimited (a LimitExceeded), BudgetSpent, AuthFailed (key revoked), PermissionDenied (tenant
        suspended), EpochUnknown (reload and try once more), Unavailable. ValueError for amounts out of range.
        """
        calls.check_amounts(request)
        now_ms = self.time_ms or self._clock.now_ms()
        for _ in range(WINDOW_RETRIES):
            windows = [self._window(limit.metric, request.timezone, now_ms) for limit in request.limits]
            answer = await self._call("hold", *calls.hold_call(request, windows, self.time_ms))
            if answer[0] == b"refused" and answer[2]:
                await self._alerted(request.tenant_id)
            if answer[0] == b"stale":  # our clock and the slot's differ around midnight: the slot's stands
                now_ms = answer[1]
                continue
            return calls.read_hold(request, windows, answer)
        raise Unavailable("The limits cannot be checked right now.", retry_after_ms=1_000)

    async def start(self, *, tenant_id: str, request_id: str, fence: str, attempt: int) -> bool:
        """Mark the hold as running, before the first token. False: do not generate (voided, settled or superseded)."""
        answer = await self._call(
            "start",
            [names.hold(tenant_id, request_id), names.holds(tenant_id), names.use(tenant_id)],
            [self.time_ms, request_id, fence, attempt, RUNNING_LOOK_MS],
        )
        return bool(answer)

    async def settle(
        self,
        *,
        tenant_id: str,
        request_id: str,
        counts: TokenCounts,
        cost_nano: int,
        outcome: str,
        hint: HoldHint,
    ) -> Settled:
        """Replace what was held by what was used, in the windows of admission. The first settlement stands.

        A hold that a failover lost is charged from `hint`; older than `settled_ttl_ms` it counts as settled long ago.
        Raises BeingRebuilt for a lost one while a rebuild reads, and Unavailable.
        """
        given = hint.idempotency
        counters: list[str] = []
        while True:
            answer = await self._call(
                "settle",
                [*self._closing_keys(tenant_id, request_id, given), names.alerts(tenant_id)],
                [
                    self.time_ms,
                    request_id,
                    given.key_digest if given else "",
                    counts.prompt,
                    counts.completion,
                    cost_nano,
                    outcome,
                    self._settled_ttl_ms,
                    hint.admitted_at_ms,
                    given.body_digest if given else "",
                    given.ttl_ms if given else 0,
                    hint.ended_at_ms,
                    *counters,
                ],
            )
            if answer[0] == b"idempotency":
                given = Idempotency(key_digest=answer[1].decode(), body_digest="")
            elif answer[0] == b"lost":
                counters = calls.counters_of(tenant_id, hint)
            elif answer[0] == b"later":
                raise BeingRebuilt("The limits are being made anew.", retry_after_ms=RETRY_AFTER_MS)
            elif answer[0] == b"forgotten":
                return Settled(first=False, cost_nano=cost_nano, outcome=outcome)
            else:
                if answer[4]:
                    await self._alerted(tenant_id)
                return Settled(first=answer[1] == 1, cost_nano=int(answer[2]), outcome=answer[3].decode())

    async def void(self, *, tenant_id: str, request_id: str, reason: str) -> bool:
        """Give back all that a request held. True also when repeated; False when it runs, is settled or is unknown."""
        given: Idempotency | None = None
        while True:
            answer = await self._call(
                "void",
                self._closing_keys(tenant_id, request_id, given),
                [self.time_ms, request_id, given.key_digest if given else "", reason, self._settled_ttl_ms],
            )
            if answer[0] != b"idempotency":
                return bool(answer[0] == b"voided")
            given = Idempotency(key_digest=answer[1].decode(), body_digest="")

    async def due(self, *, tenant_id: str, margin_ms: int, limit: int, again_ms: int = 30_000) -> list[DueHold]:
        """Open holds past their time by `margin_ms`, oldest first; each is not listed again for `again_ms`.

        Held ones are past their enqueue deadline; running ones come up every ten minutes, so that none is forgotten.
        """
        found = await self._call("due", [names.holds(tenant_id)], [self.time_ms, margin_ms, limit, again_ms])
        due: list[DueHold] = []
        async with self.gate.call():
            for request_id in (item.decode() for item in found):
                state, pool = await self._redis.hmget(names.hold(tenant_id, request_id), ["st", "pool"])
                if state in (b"held", b"running"):
                    due.append(
                        DueHold(request_id=request_id, pool=calls.text(pool), state=HoldState(calls.text(state)))
                    )
                else:
                    await self._redis.zrem(names.holds(tenant_id), request_id)
        return due

    async def open_holds(self, *, tenant_id: str) -> AsyncIterator[OpenHold]:
        """Every request of a tenant that is admitted and not settled: for a revocation."""
        cursor = 0
        while True:
            async with self.gate.call():
                cursor, page = await self._redis.zscan(names.holds(tenant_id), cursor=cursor, count=OPEN_PAGE)
                found = [calls.text(cast("bytes", request_id)) for request_id, _ in page]
                async with self._redis.pipeline(transaction=False) as pipe:
                    for request_id in found:
                        pipe.hmget(names.hold(tenant_id, request_id), ["key", "pool"])
                    rows = await pipe.execute()
            for request_id, (key_id, pool) in zip(found, rows, strict=True):
                if pool:
                    yield OpenHold(request_id=request_id, api_key_id=calls.text(key_id), pool=calls.text(pool))
            if cursor == 0:
                return

    async def blocked_keys(self, *, tenant_id: str, key_ids: Sequence[str]) -> set[str]:
        """Which of these keys are revoked; all of them when the tenant is suspended."""
        async with self.gate.call():
            tenant, *keys = await self._redis.hmget(names.epoch(tenant_id), ["tenant", *key_ids])
        suspended = int(tenant or 0) < 0
        return {key for key, epoch in zip(key_ids, keys, strict=True) if suspended or int(epoch or 0) < 0}

    async def tenants(self) -> AsyncIterator[str]:
        """Every tenant that may have holds: the settler's round."""
        cursor = 0
        while True:
            async with self.gate.call():
                cursor, members = await self._redis.sscan(names.TENANTS, cursor=cursor, count=100)
            for member in members:
                yield calls.text(member)
            if cursor == 0:
                return

    async def set_epochs(self, *, tenant_id: str, keys: Mapping[str, int], tenant_epoch: int) -> None:
        """Record epochs as PostgreSQL has them (`tenants.selectors.epochs`); negative = revoked or suspended."""
        fields: list[str | int] = ["tenant", tenant_epoch]
        for key_id, epoch in keys.items():
            fields += [key_id, epoch]
        async with self.gate.call():
            await self._redis.sadd(names.TENANTS, tenant_id)
        await self._call("epochs", [names.epoch(tenant_id)], fields)

    async def usage(
        self, *, tenant_id: str, project_id: str, api_key_id: str, limits: Sequence[Limit], timezone: str
    ) -> list[LimitUse]:
        """What of each limit is used, held and free at this instant."""
        counters = [names.counter(x, tenant_id=tenant_id, project_id=project_id, api_key_id=api_key_id) for x in limits]
        now_ms, *rows = await self._call("usage", [names.use(tenant_id)], [self.time_ms, *counters])
        return [
            calls.limit_use(limit, row, self._window(limit.metric, timezone, now_ms), now_ms)
            for limit, row in zip(limits, rows, strict=True)
        ]

    async def _alerted(self, tenant_id: str) -> None:
        """A note that the tenant's alerts have news. Lost, the slow round finds them."""
        try:
            async with self.gate.call():
                await self._redis.sadd(names.ALERTED, tenant_id)
        except Unavailable:
            log.warning("alerts of tenant %s wait for the slow round", tenant_id)

    def _window(self, metric: Metric, timezone: str, now_ms: int) -> Window:
        if not policy.is_calendar(metric):
            return policy.EVER
        slot = (timezone, policy.is_monthly(metric))
        window = self._windows.get(slot)
        if window is None or not window.start_ms <= now_ms < window.end_ms:
            if len(self._windows) >= ZONES_MAX:
                self._windows.clear()
            window = self._windows[slot] = policy.window_of(metric=metric, timezone=timezone, now_ms=now_ms)
        return window

    def _closing_keys(self, tenant_id: str, request_id: str, given: Idempotency | None) -> list[str]:
        return [
            names.hold(tenant_id, request_id),
            names.holds(tenant_id),
            names.use(tenant_id),
            names.idempotency(tenant_id, given.key_digest if given else ""),
        ]

    async def _call(self, name: str, keys: Sequence[str], args: Sequence[str | bytes | int]) -> Any:
        async with self.gate.call():
            return await self._run[name](keys=keys, args=args)
