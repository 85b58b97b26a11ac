"""Bench `metering`: how fast usage becomes rows, how large a row is, how soon a month is reported and priced anew.

Called by `manage.py bench metering`, on a Valkey of its own and a chDB directory of its own. Parts:

- records: usage records as the `end` script writes them wait in two pools' streams; the production meter (consumer
  group, manifest, one insert under a token, acknowledgement, trim) takes them all. What is timed is the way from the
  stream to ClickHouse, exactly-once on; what the `end` script itself carries is bench `queue`'s.
- month: synthetic rows of one month (`metering.sql`), made inside chDB, merged as in life; bytes of a row as they lie
  on disk, and the same questions as production's: the month's report of one tenant, its books for the close, and all
  tenants' usage priced under other unit prices.

Invariant: a row more or less than there should be fails the run.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from billing.clickhouse.migrate import Topology, migrate
from billing.clickhouse.reports import read_report
from billing.closing.books import metered_hours, metered_usage
from billing.metering.consumer import Pace, UsageConsumer
from billing.metering.keys import KNOWN_POOLS, usage_stream
from billing.metering.meter import Meter
from billing.metering.streams import LEDGER_GROUP, METER_GROUP, UsageStreams
from billing.rating.invoice import Usage, rerate
from billing.rating.periods import Span
from billing.rating.prices import CARD_ID_SEPARATOR
from billing.rating.prices import Meter as PriceMeter
from contracts.jobs import Endpoint, Ticket, Timings, UsageRecord
from contracts.money import PriceCard
from contracts.tenancy import ServiceClass
from contracts.wire import encode
from fairqueue.messages import usage_from_stream
from infra.bench.output import Measure
from infra.bench.stats import median
from stores.clickhouse_chdb import ChdbOwner
from stores.redis import Client
from stores.system import SystemClock

NAME = "metering"
RECORDS_AIM, BYTES_AIM, REPORT_AIM = 10_000.0, 80.0, 1.0
POOLS = ("bench-one", "bench-two")
START_MS = 1_793_491_200_000  # 2026-11-01 UTC
MONTH_MS = 30 * 86_400_000
PARTS = 10
TABLE = "inference_requests_audit"
_SQL = Path(__file__).with_name("metering.sql")
_CARD = CARD_ID_SEPARATOR.join("abc")
_PRICE = PriceCard(card_id=_CARD, currency="USD", input_nano=250, cached_nano=25, output_nano=2_000)
_TIMINGS = Timings(queue_us=300, prefill_us=4_000, decode_us=50_000, ttft_us=5_000, total_us=60_000, itl={80: 9})
_COUNT = "SELECT count() AS n FROM inference_requests_audit FINAL"
_KEEP = "CREATE TABLE tenth ENGINE = MergeTree ORDER BY tuple() AS SELECT * FROM inference_requests_audit"
_COPY = """INSERT INTO inference_requests_audit
SELECT * REPLACE (generateUUIDv4() AS request_id, admitted_at + toIntervalMillisecond({by}) AS admitted_at,
    billed_at + toIntervalMillisecond({by}) AS billed_at, ingested_at + toIntervalMillisecond({by}) AS ingested_at)
FROM tenth"""


class WrongCount(Exception):
    """ClickHouse has other rows than it was given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes. `rows` are a multiple of PARTS."""

    records: int = 100_000
    rows: int = 10_000_000
    tenants: int = 20
    asks: int = 3

    @property
    def steps(self) -> int:
        return 2 + PARTS + 3 * self.asks


@dataclass(slots=True, kw_only=True)
class Found:
    """Seconds of each ask; bytes as they lie on disk."""

    plan: Plan
    records_seconds: float = 0.0
    bytes_on_disk: int = 0
    asked: dict[str, list[float]] = field(default_factory=dict)
    columns: list[tuple[str, float]] = field(default_factory=list)


async def run(*, redis: Client, directory: Path, plan: Plan, advance: Callable[[int], None]) -> Found:
    """All parts. Raises WrongCount, stores.clickhouse.ClickHouseError."""
    found = Found(plan=plan)
    owner = ChdbOwner(directory=directory)
    try:
        migrate(clickhouse=owner, topology=Topology(), pause=time.sleep)
        await _write_records(redis, plan)
        advance(1)
        found.records_seconds = await _meter(redis, owner, plan)
        advance(1)
        owner.command(f"TRUNCATE TABLE {TABLE}")
        _make_month(owner, plan, advance)
        _measure_size(owner, found)
        _ask(owner, found, advance)
    finally:
        owner.close()
    return found


async def _write_records(redis: Client, plan: Plan) -> None:
    clock = SystemClock()
    timings = encode(_TIMINGS)
    await cast("Any", redis.sadd(KNOWN_POOLS, *POOLS))
    for start in range(0, plan.records, 1_000):
        async with redis.pipeline(transaction=False) as many:
            for number in range(start, min(start + 1_000, plan.records)):
                ticket = _ticket(number, now_ms=clock.now_ms())
                fields: dict[Any, Any] = {
                    "ticket": encode(ticket), "prompt": 900 + number % 700, "cached": 640,
                    "completion": 40 + number % 90,
                    "reasoning": 0, "delivered": 40, "outcome": "ok", "finish": "stop", "error": "", "attempt": 1,
                    "worker": "worker-1", "billed_at_ms": ticket.admitted_at_ms + 60, "queue_us": 300,
                    "timings": timings, "verdicts": b"\x90", "log_key": "",
                }  # fmt: skip
                many.xadd(usage_stream(ticket.pool), fields)
            await many.execute()


def _ticket(number: int, *, now_ms: int) -> Ticket:
    tenant = f"0198a000-0000-7000-8000-{number % 20:012d}"
    return Ticket(
        request_id=str(uuid.uuid4()), tenant_id=tenant, project_id=tenant, api_key_id=f"{tenant[:-2]}{number % 12:02d}",
        pool=POOLS[number % 2], model="small", endpoint=Endpoint.CHAT, body=b"", stream=True, include_usage=True,
        prompt_tokens=900, max_tokens=200, choices=1, cache_salt="", price=_PRICE, policy=None,
        service_class=ServiceClass.INTERACTIVE, admitted_at_ms=now_ms, edge_us=200, guard_us=300, evaluation_log=False,
    )  # fmt: skip


class _NoListeners:
    """`billing.metering.meter.Feed` without a broker: announcements are best effort and not what is measured."""

    async def publish(self, *, batch_id: str, at_ms: int, records: Sequence[UsageRecord]) -> None:
        """Announced to nobody."""


async def _meter(redis: Client, owner: ChdbOwner, plan: Plan) -> float:
    """Seconds until the meter has finished every record that waits."""
    clock = SystemClock()
    streams = UsageStreams(redis=redis, group=METER_GROUP, consumer="bench")
    meter = Meter(
        redis=redis, streams=streams, clickhouse=owner, revive=usage_from_stream, feed=_NoListeners(), clock=clock,
        mint_batch_id=lambda: str(uuid.uuid4()),
    )  # fmt: skip
    await UsageStreams(redis=redis, group=LEDGER_GROUP, consumer="bench").discover()
    consumer = UsageConsumer(streams=streams, work=meter, clock=clock, pace=Pace(), trims=True)
    began = clock.monotonic()
    while await consumer.round() or await streams.lag():
        pass
    seconds = clock.monotonic() - began
    _expect(owner, plan.records)
    return seconds


def _make_month(owner: ChdbOwner, plan: Plan, advance: Callable[[int], None]) -> None:
    """A tenth is made, nine are copied three days further on under ids of their own; then all is merged."""
    part = plan.rows // PARTS
    numbers = {
        "first": 0, "rows": part, "total": part, "tenants": plan.tenants, "start_ms": START_MS,
        "month_ms": MONTH_MS // PARTS,
    }  # fmt: skip
    text = _SQL.read_text(encoding="utf-8")
    for name, number in numbers.items():  # whole numbers of ours
        text = text.replace(f"{{{name}:UInt64}}", f"toUInt64({number})").replace(
            f"{{{name}:Int64}}", f"toInt64({number})"
        )
    owner.command(text)
    owner.command(_KEEP)
    advance(1)
    for number in range(1, PARTS):
        owner.command(_COPY.format(by=number * (MONTH_MS // PARTS)))
        advance(1)
    owner.command("DROP TABLE tenth SYNC")
    owner.command(f"OPTIMIZE TABLE {TABLE} FINAL")
    _expect(owner, part * PARTS)


def _expect(owner: ChdbOwner, rows: int) -> None:
    there = owner.execute(_COUNT)[0]["n"]
    if there != rows:
        raise WrongCount(f"{there} rows, {rows} were given")


def _measure_size(owner: ChdbOwner, found: Found) -> None:
    sizes = "SELECT sum(data_compressed_bytes) AS n FROM system.parts WHERE active AND table = {table:String}"
    found.bytes_on_disk = int(owner.execute(sizes, {"table": TABLE})[0]["n"])
    columns = "SELECT name, data_compressed_bytes AS n FROM system.columns WHERE table = {table:String} ORDER BY n DESC"
    found.columns = [(row["name"], row["n"] / found.plan.rows) for row in owner.execute(columns, {"table": TABLE})]


def _ask(owner: ChdbOwner, found: Found, advance: Callable[[int], None]) -> None:
    plan = found.plan
    tenants = [f"0198a000-0000-7000-8000-{number:012x}" for number in range(plan.tenants)]
    end_ms = START_MS + MONTH_MS + 86_400_000
    span = Span.of_ms(START_MS, end_ms)
    asks: Mapping[str, Callable[[], int]] = {
        "report_month_s": lambda: sum(
            line.requests for line in read_report(owner, tenant_id=tenants[1], start_ms=START_MS, end_ms=end_ms)
        ),
        "close_month_s": lambda: sum(
            hour.requests for hour in metered_hours(owner, tenant_id=tenants[1], span=span)
        ),
        "rerate_month_s": lambda: sum(_rerated(owner, tenant, span) for tenant in tenants),
    }  # fmt: skip
    for name, ask in asks.items():
        for _ in range(plan.asks):
            began = time.monotonic()
            answer = ask()
            found.asked.setdefault(name, []).append(time.monotonic() - began)
            if answer <= 0:
                raise WrongCount(f"{name} found nothing")
            advance(1)


def _rerated(owner: ChdbOwner, tenant_id: str, span: Span) -> int:
    """Nano-units that a tenant's month costs more when every unit price is doubled."""
    usage = [
        Usage(
            model=row.model, service_class=row.service_class, meter=meter, price_id=row.card_id, unit_nano=unit,
            tokens=tokens,
        )
        for row in metered_usage(owner, tenant_id=tenant_id, span=span)
        for meter, unit, tokens in zip(PriceMeter, row.units, row.tokens, strict=True)
    ]  # fmt: skip
    return rerate(usage, units={(each.model, each.service_class, each.meter): each.unit_nano * 2 for each in usage})


def measures(found: Found) -> list[Measure]:
    """The lines of a run."""
    plan = found.plan
    month: dict[str, str | int | float] = {"rows": plan.rows, "tenants": plan.tenants}
    return [
        Measure(
            bench=NAME, metric="records_per_s", value=plan.records / found.records_seconds, unit="1/s",
            case={"records": plan.records},
        ),
        Measure(bench=NAME, metric="bytes_per_row", value=found.bytes_on_disk / plan.rows, unit="B", case=month),
        Measure(bench=NAME, metric="clickhouse_bytes", value=float(found.bytes_on_disk), unit="B", case=month),
        *(
            Measure(bench=NAME, metric=name, value=median(seconds), unit="s", case=month)
            for name, seconds in found.asked.items()
        ),
    ]  # fmt: skip


def verdict_rows(found: Found, lines: Sequence[Measure]) -> list[tuple[str, str]]:
    """Aims against what was seen, and the widest columns."""
    seen = {line.metric: line.value for line in lines}
    met = {
        "records_per_s": (RECORDS_AIM, seen["records_per_s"] >= RECORDS_AIM),
        "bytes_per_row": (BYTES_AIM, seen["bytes_per_row"] <= BYTES_AIM),
        "report_month_s": (REPORT_AIM, seen["report_month_s"] <= REPORT_AIM),
    }
    rows = [
        (name, f"{seen[name]:,.3f}, aim {aim:g}: {'met' if good else 'missed'}") for name, (aim, good) in met.items()
    ]
    widest = ", ".join(f"{name} {size:.1f}" for name, size in found.columns[:8])
    return [*rows, ("widest columns, bytes a row", widest)]
