"""Limits against metered usage: the check that the beat runs, and the rebuild. Brings together tenants and billing.

Called by `controlplane.tasks` and `manage.py rebuild_limits`. A snapshot of the counters names a watermark below which
every admitted request is settled; once the meter has passed all that had ended by then, ClickHouse's sums below it and
the settlements since must be what the counters hold. Usage that is recorded later than the snapshot is left out of the
sums, so that a lost hold that ends while they are read is not in them; the clocks of the pools may differ from the
tenant's by `skew_ms`. A limit that begins within its window counts what was used before as soon as the beat sees it
(`begin`); requests that were under way then, or were still admitted without it, are brought in by the next check.
Invariants: what cannot be told is skipped with its reason and never reported as a drift; a limit that was set within
its window is brought up to date, not reported.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

from asgiref.sync import sync_to_async
from redis.asyncio import Redis

from billing.clickhouse.limits import AdmittedUse, read_admitted
from billing.metering.keys import KNOWN_POOLS, usage_stream
from billing.metering.streams import METER_GROUP
from billing.selectors import usage_reader
from contracts.tenancy import Limit, Scope
from controlplane.env import environment
from stores.clickhouse import Reader
from stores.redis import open_redis
from stores.system import SystemClock
from tenants.budgets import CountedLimit, counted_limits
from tenants.limits import policy
from tenants.limits.audit import Audit, Rebuilt, Snapshot, Standing
from tenants.limits.gate import Gate
from tenants.limits.policy import RULES, Amount, Kind

METER_SECONDS = 20.0
BEGIN_METER_SECONDS = 5.0  # a limit that begins is tried again by the next beat
METER_POLL_SECONDS = 0.25
METER_BEHIND = "the meter is behind"  # then nobody's limits can be told about
SKEW_MS = 500
SETTLED_AFTER_MS = 60_000  # of a cap: the contexts without it are refused by then
_SUMMED = (Kind.WINDOW, Kind.LIFETIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A counter that does not hold what it should. Amounts in tokens or nano-units; `what` is `used` or `held`."""

    counter: str
    what: str
    found: int
    expected: int


@dataclass(slots=True, kw_only=True)
class Findings:
    """One tenant's audit. `skipped` says why nothing, or not all, could be told."""

    tenant_id: str
    checked: int = 0
    renewed: int = 0
    drifts: list[Drift] = field(default_factory=list)
    skipped: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Auditor:
    """One process's audit: the limits' store, and the reader of what was metered."""

    redis: Redis
    audit: Audit
    reader: Reader
    limits_of: Callable[[str], Awaitable[Sequence[CountedLimit]]]
    skew_ms: int = SKEW_MS

    async def check(self, *, tenant_id: str, renew: bool = True) -> Findings:
        """Compare, and bring limits that are younger than their window up to date, if it may write (`renew`)."""
        found = Findings(tenant_id=tenant_id)
        limits = await self.limits_of(tenant_id)
        snapshot = await self._snapshot(tenant_id, limits, found, meter_seconds=METER_SECONDS)
        if snapshot is None or snapshot.watermark_ms is None:
            return found
        young: list[CountedLimit] = []
        sums, watermark_ms = self._sums(tenant_id, snapshot), snapshot.watermark_ms
        for counted, standing in zip(limits, snapshot.standings, strict=True):
            found.checked += 1
            if standing.held_drift:
                found.drifts.append(_drift(standing, "held", standing.held, standing.held_by_open))
            if RULES[counted.limit.metric].kind not in _SUMMED or not _has_counted(counted.limit, standing):
                continue
            since = counted.limit.since_ms
            below = await sums.of(counted, start_ms=standing.start_ms, end_ms=watermark_ms)
            if standing.from_ms > since + SETTLED_AFTER_MS:
                if standing.drift(below=below):
                    found.drifts.append(_drift(standing, "used", standing.used, below + standing.late))
            elif snapshot.watermark_ms > since + SETTLED_AFTER_MS:
                young.append(counted)
        if young and renew:
            await self._renew(tenant_id, young, found, timezone=None)
        return found

    async def begin(self, *, tenant_id: str, timezone: str) -> Findings:
        """Let limits that are younger than their window count what was admitted before them, once for each."""
        found = Findings(tenant_id=tenant_id)
        limits = [each for each in await self.limits_of(tenant_id) if RULES[each.limit.metric].kind in _SUMMED]
        snapshot = await self.audit.snapshot(tenant_id=tenant_id, counters=[each.counter for each in limits])
        young = [
            counted
            for counted, standing in zip(limits, snapshot.standings, strict=False)
            if standing.from_ms < counted.limit.since_ms and not standing.is_over(snapshot.now_ms)
        ]
        if young:
            found.checked = await self._renew(tenant_id, young, found, timezone=timezone, beginning=True)
        return found

    async def rebuild(self, *, tenant_id: str, timezone: str) -> Findings:
        """Make every counter anew. One that was lost gets the window of now and all that was metered in it: the
        settlements since the watermark were lost with it.
        """
        found = Findings(tenant_id=tenant_id)
        found.checked = await self._renew(tenant_id, await self.limits_of(tenant_id), found, timezone=timezone)
        return found

    async def _renew(
        self,
        tenant_id: str,
        limits: Sequence[CountedLimit],
        found: Findings,
        *,
        timezone: str | None,
        beginning: bool = False,
    ) -> int:
        """Returns how many counters could be told. Without a zone, one that has no window is left out.

        `beginning`: what was admitted since a limit began is in its counter already, also where nothing was.
        """
        patience = BEGIN_METER_SECONDS if beginning else METER_SECONDS
        snapshot = await self._snapshot(tenant_id, limits, found, reading=True, meter_seconds=patience)
        if snapshot is None or snapshot.watermark_ms is None:
            return 0
        sums = self._sums(tenant_id, snapshot)
        wanted: list[Rebuilt] = []
        for counted, standing in zip(limits, snapshot.standings, strict=True):
            kind = RULES[counted.limit.metric].kind
            if kind in (Kind.RATE, Kind.REQUEST):
                continue  # a bucket drains by itself
            window, below = standing.window, 0
            end_ms = snapshot.watermark_ms if standing.known else snapshot.now_ms + 1
            if beginning:
                end_ms = counted.limit.since_ms
            if kind in _SUMMED:
                if kind is Kind.WINDOW and not window:
                    if timezone is None:
                        continue
                    now = policy.window_of(metric=counted.limit.metric, timezone=timezone, now_ms=snapshot.now_ms)
                    window = f"{now.label} {now.start_ms} {now.end_ms}"
                start_ms = int(window.split(" ")[1]) if window else 0
                below = await sums.of(counted, start_ms=start_ms, end_ms=end_ms)
            wanted.append(Rebuilt(counter=standing.counter, kind=kind, below=below, below_ms=end_ms, window=window))
        renewed = await self.audit.rebuild(
            tenant_id=tenant_id, snapshot=snapshot, metered_ms=snapshot.now_ms + self.skew_ms, counters=wanted
        )
        if renewed is None:
            found.skipped = "it took too long, or another rebuild began"
        found.renewed = renewed or 0
        return len(wanted)

    def _sums(self, tenant_id: str, snapshot: Snapshot) -> "_Sums":
        return _Sums(self.reader, tenant_id=tenant_id, billed_ms=snapshot.now_ms + self.skew_ms)

    async def _snapshot(
        self,
        tenant_id: str,
        limits: Sequence[CountedLimit],
        found: Findings,
        *,
        meter_seconds: float,
        reading: bool = False,
    ) -> Snapshot | None:
        if not limits:
            return None
        counters = [each.counter for each in limits]
        snapshot = await self.audit.snapshot(tenant_id=tenant_id, counters=counters, reading=reading)
        if reading:  # what a pool records until `skew_ms` from now by its own clock is on its stream after twice that
            await asyncio.sleep(2 * self.skew_ms / 1000)
        if snapshot.watermark_ms is None:
            found.skipped = "a request has been open for too long, or too many are open"
        elif not await self._metered(meter_seconds):
            found.skipped = METER_BEHIND
            return None
        return snapshot

    async def _metered(self, seconds: float) -> bool:
        """Waits until the meter has taken all that had ended by now; False when it does not get there in time."""
        ends = await self._stream_ends()
        try:
            async with asyncio.timeout(seconds):
                for stream, last in ends.items():
                    while not await self._passed(stream, last):  # noqa: ASYNC110 - the meter offers no event
                        await asyncio.sleep(METER_POLL_SECONDS)
        except TimeoutError:
            return False
        return True

    async def _stream_ends(self) -> dict[str, tuple[int, int]]:
        pools = await cast("Awaitable[set[bytes]]", self.redis.smembers(KNOWN_POOLS))
        ends: dict[str, tuple[int, int]] = {}
        for pool in sorted(pools):
            stream = usage_stream(pool.decode())
            if await self.redis.exists(stream):
                ends[stream] = _entry_id((await self.redis.xinfo_stream(stream))["last-generated-id"])
        return ends

    async def _passed(self, stream: str, last: tuple[int, int]) -> bool:
        groups = {group["name"].decode(): group for group in await self.redis.xinfo_groups(stream)}
        group = groups.get(METER_GROUP)
        if group is None or _entry_id(group["last-delivered-id"]) < last:
            return False
        pending = await self.redis.xpending(stream, METER_GROUP)
        return not pending["pending"] or _entry_id(pending["min"]) > last


@asynccontextmanager
async def open_auditor() -> AsyncIterator[Auditor]:
    """With connections of its own, closed at the end."""
    redis = open_redis(environment().redis)
    try:
        gate = Gate(SystemClock())
        yield Auditor(
            redis=redis,
            audit=Audit(redis, gate=gate),
            reader=usage_reader(),
            limits_of=sync_to_async(counted_limits, thread_sensitive=True),
        )
    finally:
        await redis.aclose(close_connection_pool=True)


class _Sums:
    """ClickHouse's sums, asked once per period."""

    def __init__(self, reader: Reader, *, tenant_id: str, billed_ms: int) -> None:
        self._reader = reader
        self._tenant_id = tenant_id
        self._billed_ms = billed_ms
        self._rows: dict[tuple[int, int], list[AdmittedUse]] = {}

    async def of(self, counted: CountedLimit, *, start_ms: int, end_ms: int) -> int:
        """What a limit counts of admissions in [start_ms, end_ms)."""
        if start_ms >= end_ms:
            return 0
        period = start_ms, end_ms
        if period not in self._rows:
            self._rows[period] = await asyncio.to_thread(
                read_admitted,
                self._reader,
                tenant_id=self._tenant_id,
                start_ms=start_ms,
                end_ms=end_ms,
                billed_ms=self._billed_ms,
            )
        money = RULES[counted.limit.metric].amount is Amount.MONEY
        mine = [row for row in self._rows[period] if _counts(counted, row)]
        return sum(row.cost_nano if money else row.tokens for row in mine)


def _counts(counted: CountedLimit, row: AdmittedUse) -> bool:
    owner = {Scope.KEY: row.api_key_id, Scope.PROJECT: row.project_id, Scope.TENANT: counted.owner_id}
    return counted.limit.model in (None, row.model) and owner[counted.limit.scope] == counted.owner_id


def _has_counted(limit: Limit, standing: Standing) -> bool:
    """A counter of a day or a month that no request has touched yet holds nothing, and has no window."""
    return RULES[limit.metric].kind is Kind.LIFETIME or bool(standing.window)


def _drift(standing: Standing, what: str, found: int, expected: int) -> Drift:
    return Drift(counter=standing.counter, what=what, found=found, expected=expected)


def _entry_id(text: bytes | str) -> tuple[int, int]:
    first, _, second = (text.decode() if isinstance(text, bytes) else text).partition("-")
    return int(first), int(second or 0)
