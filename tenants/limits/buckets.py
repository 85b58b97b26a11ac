"""Step 3, LIMITS: `Limits`, the async door to the {tenant} slot. Called by admission, workers and the settler.

Invariants: a cap is never passed under any interleaving; a refused request changes no counter; each hold ends once.
Fails closed: when Redis is away or slow, every method raises `Unavailable` within `DEADLINE_SECONDS`.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from contracts.clock import Clock
from contracts.errors import AuthFailed, PermissionDenied, Unavailable
from contracts.tenancy import Limit, Metric, Scope
from contracts.tokens import TokenCounts
from stores.lua import load_scripts
from stores.system import SystemClock
from tenants.limits import keys as names
from tenants.limits import policy, refusal
from tenants.limits.holds import (
    DueHold,
    EpochUnknown,
    HoldExisting,
    HoldGranted,
    HoldHint,
    HoldRequest,
    HoldState,
    Idempotency,
    LimitUse,
    Settled,
)
from tenants.limits.policy import RULES, Kind, Reading, Window

DEADLINE_SECONDS = 2.0
SETTLED_TTL_MS = 6 * 3_600_000
RUNNING_LOOK_MS = 600_000
WINDOW_RETRIES = 3
ZONES_MAX = 1_024
_SCRIPTS = load_scripts(Path(__file__).parent / "scripts")


class Limits:
    """All writes are single scripts, idempotent by request id. `settled_ttl_ms`: how long a result is remembered."""

    def __init__(
        self, redis: Redis, *, clock: Clock | None = None, settled_ttl_ms: int = SETTLED_TTL_MS, time_ms: int = 0
    ) -> None:
        """`time_ms` overrides the server's own clock in the scripts (tests); 0 leaves it."""
        self._redis = redis
        self._clock = clock or SystemClock()
        self._settled_ttl_ms = settled_ttl_ms
        self.time_ms = time_ms
        self._windows: dict[tuple[str, bool], Window] = {}
        self._run = {name: script.bind(redis) for name, script in _SCRIPTS.items()}

    async def hold(self, request: HoldRequest) -> HoldGranted | HoldExisting:
        """Hold the worst case of a request in every limit, or in none.

        Raises RateLimited (a LimitExceeded), BudgetSpent, AuthFailed (key revoked), PermissionDenied (tenant
        suspended), EpochUnknown (reload and try once more), Unavailable. ValueError for amounts out of range.
        """
        _check_amounts(request)
        now_ms = self.time_ms or self._clock.now_ms()
        for _ in range(WINDOW_RETRIES):
            windows = [self._window(limit.metric, request.timezone, now_ms) for limit in request.limits]
            answer = await self._call("hold", *_hold_call(request, windows, self.time_ms))
            if answer[0] == b"stale":  # our clock and the slot's differ around midnight: the slot's stands
                now_ms = answer[1]
                continue
            return _read_hold(request, windows, answer)
        raise Unavailable("The limits cannot be checked right now.", retry_after_ms=1_000)

    async def start(self, *, tenant_id: str, request_id: str, fence: str, attempt: int) -> bool:
        """Mark the hold as running, before the first token. False: do not generate (voided, settled or superseded)."""
        answer = await self._call(
            "start",
            [names.hold(tenant_id, request_id), names.holds(tenant_id)],
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

        A hold that a failover lost is charged from `hint`. Older than `settled_ttl_ms` it counts as settled long ago.
        """
        given = hint.idempotency
        counters: list[str] = []
        while True:
            answer = await self._call(
                "settle",
                self._closing_keys(tenant_id, request_id, given),
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
                    *counters,
                ],
            )
            if answer[0] == b"idempotency":
                given = Idempotency(key_digest=answer[1].decode(), body_digest="")
            elif answer[0] == b"lost":
                counters = _counters_of(tenant_id, hint)
            elif answer[0] == b"forgotten":
                return Settled(first=False, cost_nano=cost_nano, outcome=outcome)
            else:
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
        async with self._deadline():
            for request_id in (item.decode() for item in found):
                state, pool = await self._redis.hmget(names.hold(tenant_id, request_id), ["st", "pool"])
                if state in (b"held", b"running"):
                    due.append(DueHold(request_id=request_id, pool=_text(pool), state=HoldState(_text(state))))
                else:
                    await self._redis.zrem(names.holds(tenant_id), request_id)
        return due

    async def tenants(self) -> AsyncIterator[str]:
        """Every tenant that may have holds: the settler's round."""
        cursor = 0
        while True:
            async with self._deadline():
                cursor, members = await self._redis.sscan(names.TENANTS, cursor=cursor, count=100)
            for member in members:
                yield _text(member)
            if cursor == 0:
                return

    async def set_epochs(self, *, tenant_id: str, keys: Mapping[str, int], tenant_epoch: int) -> None:
        """Record epochs as PostgreSQL has them (`tenants.selectors.epochs`); negative = revoked or suspended."""
        fields: list[str | int] = ["tenant", tenant_epoch]
        for key_id, epoch in keys.items():
            fields += [key_id, epoch]
        async with self._deadline():
            await self._redis.sadd(names.TENANTS, tenant_id)
        await self._call("epochs", [names.epoch(tenant_id)], fields)

    async def usage(
        self, *, tenant_id: str, project_id: str, api_key_id: str, limits: Sequence[Limit], timezone: str
    ) -> list[LimitUse]:
        """What of each limit is used, held and free at this instant."""
        counters = [names.counter(x, tenant_id=tenant_id, project_id=project_id, api_key_id=api_key_id) for x in limits]
        now_ms, *rows = await self._call("usage", [names.use(tenant_id)], [self.time_ms, *counters])
        return [
            _limit_use(limit, row, self._window(limit.metric, timezone, now_ms), now_ms)
            for limit, row in zip(limits, rows, strict=True)
        ]

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
        async with self._deadline():
            return await self._run[name](keys=keys, args=args)

    @asynccontextmanager
    async def _deadline(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                yield
        except (RedisError, TimeoutError, OSError) as error:
            raise Unavailable("The limits cannot be checked right now.", retry_after_ms=1_000) from error


def _text(value: bytes | str | None) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""


def _check_amounts(request: HoldRequest) -> None:
    """Checked integers: a huge multiplier must never wrap or lose a digit in a script."""
    if not 0 <= request.prompt_tokens <= policy.TOKENS_MAX or not 0 <= request.output_tokens_max <= policy.TOKENS_MAX:
        raise ValueError("token amounts must lie between 0 and TOKENS_MAX")
    if not 0 <= request.cost_max_nano <= policy.CAP_MAX or request.choices < 1 or request.output_nano_per_token < 0:
        raise ValueError("the worst-case cost must lie between 0 and CAP_MAX, choices must be positive")


def _hold_call(request: HoldRequest, windows: Sequence[Window], time_ms: int) -> tuple[list[str], list[str | int]]:
    given = request.idempotency
    tenant_id = request.tenant_id
    keys = [
        names.hold(tenant_id, request.request_id),
        names.holds(tenant_id),
        names.use(tenant_id),
        names.epoch(tenant_id),
        names.idempotency(tenant_id, given.key_digest if given else ""),
    ]
    args: list[str | int] = [
        time_ms,
        request.request_id,
        request.api_key_id,
        request.key_epoch,
        request.tenant_epoch,
        request.enqueue_deadline_ms,
        request.pool,
        request.project_id,
        request.prompt_tokens,
        request.output_tokens_max,
        request.cost_max_nano,
        request.output_nano_per_token if request.cut_to_affordable else 0,
        request.choices,
        given.key_digest if given else "",
        given.body_digest if given else "",
        given.ttl_ms if given else 0,
    ]
    for limit, window in zip(request.limits, windows, strict=True):
        rule = RULES[limit.metric]
        name = names.counter(limit, tenant_id=tenant_id, project_id=request.project_id, api_key_id=request.api_key_id)
        args += [name, rule.kind.value, rule.amount.value, limit.cap, window.label, window.start_ms, window.end_ms]
    return keys, args


def _read_hold(request: HoldRequest, windows: Sequence[Window], answer: list[Any]) -> HoldGranted | HoldExisting:
    status = answer[0]
    if status == b"granted":
        now_ms, admitted, deadline, output, cut = answer[1:6]
        readings = [Reading(used=u, held=h) for u, h in zip(answer[6::2], answer[7::2], strict=True)]
        requests, tokens = refusal.rates(request.limits, readings, windows, now_ms)
        return HoldGranted(
            request_id=request.request_id,
            admitted_at_ms=admitted,
            hold_deadline_ms=deadline,
            output_tokens=output,
            cut=bool(cut),
            requests=requests,
            tokens=tokens,
        )
    if status == b"existing":
        return HoldExisting(
            request_id=answer[1].decode(), state=HoldState(answer[2].decode()), body_matches=answer[3] == 1
        )
    if status == b"refused":
        fits = answer[2::3]
        readings = [Reading(used=u, held=h) for u, h in zip(answer[3::3], answer[4::3], strict=True)]
        raise refusal.refused(request, windows, fits, readings, answer[1])
    if answer[1] == b"key":
        raise AuthFailed("This API key was revoked.")
    if answer[1] == b"tenant":
        raise PermissionDenied("This organization is suspended.", code="tenant_suspended")
    raise EpochUnknown(answer[1].decode())


def _counters_of(tenant_id: str, hint: HoldHint) -> list[str]:
    """Every counter that a lost hold may have stood in; the script charges those that exist."""
    counters: list[str] = []
    for scope in Scope:
        for metric, rule in RULES.items():
            name = names.counter(
                Limit(scope=scope, metric=metric, cap=0),
                tenant_id=tenant_id,
                project_id=hint.project_id,
                api_key_id=hint.api_key_id,
            )
            counters += [name, rule.kind.value, rule.amount.value]
    return counters


def _limit_use(limit: Limit, row: Sequence[bytes | None], window: Window, now_ms: int) -> LimitUse:
    used, held = int(row[0] or 0), int(row[1] or 0)
    kind = RULES[limit.metric].kind
    if kind in (Kind.RATE, Kind.OUTPUT):
        used = policy.drained(debt=used, cap=limit.cap, since_ms=int(row[2] or now_ms), now_ms=now_ms)
    elif kind is Kind.WINDOW:
        stored = (row[2] or b"").decode().split(" ")[0]
        if stored < window.label:
            used, held = 0, 0
    reading = Reading(used=used, held=held)
    shown = -(-used // policy.GRAINS) if kind in (Kind.RATE, Kind.OUTPUT) else used
    return LimitUse(
        limit=limit,
        used=shown,
        held=held,
        free=policy.free(metric=limit.metric, cap=limit.cap, reading=reading),
        reset_ms=policy.reset_ms(metric=limit.metric, cap=limit.cap, reading=reading, window=window, now_ms=now_ms),
    )
