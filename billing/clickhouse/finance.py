"""What finance asks of the usage tables: revenue, engine time, savings, latency and waste, in groups. No I/O here.

Called by `billing.reporting`. Two questions of the same groups: billed rows, and attempts that no row was made of.
Invariants: names in the SQL come from fixed lists, values are parameters; a span is half-open in `billed_at`, days and
hours are those of the zone asked for; pages are by the groups themselves, so sums of pages are the sum of the whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from billing.clickhouse.usage import LOOKBACK_MS, check_range
from contracts.errors import InvalidRequest
from stores.clickhouse import Parameter

_ROWS, _ATTEMPTS = "billed_at", "ended_at"
DIMENSIONS = ("tenant", "project", "key", "model", "outcome", "class", "price", "day", "hour")
_COLUMNS = {
    "tenant": "tenant_id",
    "project": "project_id",
    "key": "api_key_id",
    "model": "model_name",
    "outcome": "outcome",
    "class": "service_class",
    "price": "price_card_id",
    "day": "formatDateTime(toStartOfDay({at}, {{zone:String}}), '%Y-%m-%d', {{zone:String}})",
    # With its offset: the hour that a change of the clock repeats is two hours.
    "hour": "formatDateTime(toStartOfHour(toTimeZone({at}, {{zone:String}})), '%Y-%m-%dT%H:00%z', {{zone:String}})",
}
ATTEMPT_DIMENSIONS = frozenset({"tenant", "model", "day", "hour"})  # what an attempt knows of
PAGE_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FinanceQuestion:
    """Times in milliseconds. `tenant_id` "" = every tenant. `after`: the groups of the last row of the page before.

    `slo_ttft_us`: the time to the first token that is promised.
    """

    start_ms: int
    end_ms: int
    by: tuple[str, ...]
    zone: str = "UTC"
    tenant_id: str = ""
    slo_ttft_us: int = 1_000_000
    limit: int = PAGE_MAX
    after: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Raises InvalidRequest naming what is wrong."""
        check_range(start_ms=self.start_ms, end_ms=self.end_ms, start="from", end="to")
        if set(self.by) - set(DIMENSIONS) or len(set(self.by)) != len(self.by):
            raise InvalidRequest(f"by names each of {', '.join(DIMENSIONS)} at most once", param="by")
        if not 1 <= self.limit <= PAGE_MAX:
            raise InvalidRequest(f"limit is 1 to {PAGE_MAX}", param="limit")
        if not 0 < self.slo_ttft_us <= 3_600_000_000:
            raise InvalidRequest("slo_ttft_ms is above 0, an hour at most", param="slo_ttft_ms")
        if self.after is not None and len(self.after) != len(self.by) + 1:
            raise InvalidRequest("after is not a cursor of this question", param="after")
        try:
            ZoneInfo(self.zone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise InvalidRequest("zone is an IANA name, like Asia/Kathmandu", param="zone") from error

    @property
    def rows_sql(self) -> str:
        """A page of groups of billed rows, with their currency as the last group."""
        names = [f"g{number}" for number in range(len(self.by) + 1)]
        groups = [*(_expression(name, _ROWS) for name in self.by), "currency"]
        page = "" if self.after is None else f"\nHAVING ({', '.join(names)}) > ({_after(len(names))})"
        return _ROWS_SQL.format(groups=_selected(groups), names=", ".join(names), page=page)

    @property
    def wasted_sql(self) -> str:
        """Attempts that ended and that no billed row is of, by the groups that attempts know of."""
        known = self.attempt_groups
        groups = [_expression(name, _ATTEMPTS) for name in known] or ["''"]
        names = ", ".join(f"g{number}" for number in range(len(groups)))
        return _WASTED_SQL.format(groups=_selected(groups), names=names)

    @property
    def attempt_groups(self) -> tuple[str, ...]:
        return tuple(name for name in self.by if name in ATTEMPT_DIMENSIONS)

    @property
    def params(self) -> Mapping[str, Parameter]:
        return {
            "tenant_id": self.tenant_id,
            "start_ms": self.start_ms,
            "end_ms": self.end_ms,
            "admitted_from_ms": self.start_ms - LOOKBACK_MS,
            "zone": self.zone,
            "slo_ttft_us": self.slo_ttft_us,
            "limit": self.limit + 1,
            **{f"after{number}": text for number, text in enumerate(self.after or ())},
        }


def _expression(name: str, at: str) -> str:
    return _COLUMNS[name].format(at=at)


def _selected(groups: list[str]) -> str:
    return ", ".join(f"toString({group}) AS g{number}" for number, group in enumerate(groups))


def _after(count: int) -> str:
    return ", ".join(f"{{after{number}:String}}" for number in range(count))


_ROWS_SQL = """SELECT {groups},
    countIf(used.revision = 1) AS requests,
    countIf(used.revision = 1 AND used.outcome = 'ok') AS ok_requests,
    sum(used.prompt_tokens) AS input_tokens,
    sum(used.cached_tokens) AS cached_tokens,
    sum(used.completion_tokens) AS output_tokens,
    sum(used.reasoning_tokens) AS reasoning_tokens,
    sum(used.cost) AS revenue,
    sum(toInt128(used.cached_tokens) * (used.price_input_nano - used.price_cached_nano)) AS cache_savings_nano,
    sum(used.prefill_us + used.decode_us) AS engine_us,
    quantilesTDigestIf(0.5, 0.9, 0.99)(used.ttft_us, used.ttft_us > 0) AS ttft_us,
    countIf(used.ttft_us > 0) AS measured,
    countIf(used.ttft_us > 0 AND used.ttft_us <= {{slo_ttft_us:UInt64}}) AS within_slo,
    sumMap(used.itl) AS itl
FROM (
    SELECT * FROM inference_requests_audit FINAL
    WHERE ({{tenant_id:String}} = '' OR tenant_id = {{tenant_id:String}})
        AND billed_at >= fromUnixTimestamp64Milli({{start_ms:Int64}}, 'UTC')
        AND billed_at < fromUnixTimestamp64Milli({{end_ms:Int64}}, 'UTC')
        AND admitted_at >= fromUnixTimestamp64Milli({{admitted_from_ms:Int64}}, 'UTC')
        AND admitted_at < fromUnixTimestamp64Milli({{end_ms:Int64}}, 'UTC')
) AS used
GROUP BY {names}{page}
ORDER BY {names}
LIMIT {{limit:UInt32}}"""

_WASTED_SQL = """SELECT {groups},
    count() AS attempts,
    sum(prefill_us + decode_us) AS engine_us
FROM attempt_raw FINAL
WHERE ({{tenant_id:String}} = '' OR tenant_id = {{tenant_id:String}})
    AND ended_at >= fromUnixTimestamp64Milli({{start_ms:Int64}}, 'UTC')
    AND ended_at < fromUnixTimestamp64Milli({{end_ms:Int64}}, 'UTC')
    AND (request_id, attempt) NOT IN (
        SELECT request_id, attempt FROM inference_requests_audit FINAL
        WHERE ({{tenant_id:String}} = '' OR tenant_id = {{tenant_id:String}})
            AND admitted_at >= fromUnixTimestamp64Milli({{admitted_from_ms:Int64}}, 'UTC')
            AND admitted_at < fromUnixTimestamp64Milli({{end_ms:Int64}}, 'UTC')
    )
GROUP BY {names}
ORDER BY {names}"""
