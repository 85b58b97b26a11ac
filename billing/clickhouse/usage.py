"""Usage by time bucket in OpenAI's shape: the question checked, the SQL made, the answer laid out. No I/O here.

Called by `billing.clickhouse.reports`. Invariants: names in the SQL come from fixed lists, values are parameters; the
buckets of a page are half-open, in UTC, without gap or overlap, so their sums are the sum of the range.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from billing.clickhouse.shapes import UsageBucket, UsagePage, UsageResult
from contracts.errors import InvalidRequest
from contracts.money import nano_from_decimal
from stores.clickhouse import Parameter

# A request may be billed long after it was admitted: batches run for a day, a replayed attempt log some time longer.
# The sort key knows admission only, so every query by billing time looks this far back.
LOOKBACK_MS = 3 * 86_400_000


@dataclass(frozen=True, slots=True)
class Width:
    """A bucket size with OpenAI's page sizes (buckets)."""

    milliseconds: int
    default: int
    maximum: int


WIDTHS = {
    "1m": Width(60_000, 60, 1_440),
    "1h": Width(3_600_000, 24, 168),
    "1d": Width(86_400_000, 7, 31),
}
GROUPS = {"model": "model_name", "project_id": "project_id", "api_key_id": "api_key_id"}
FILTER_VALUES_MAX = 100
RANGE_MAX_MS = 400 * 86_400_000
ROWS_MAX = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageQuestion:
    """A checked question. Times in milliseconds, half-open."""

    tenant_id: str
    start_ms: int
    end_ms: int
    width: Width
    group_by: tuple[str, ...] = ()
    filters: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def sql(self) -> str:
        """The text depends on the grouping and on which filters are there, never on a value."""
        groups = "".join(f", {GROUPS[name]}" for name in self.group_by)
        filters = "".join(f"\n    AND {GROUPS[name]} IN {{{name}:Array(String)}}" for name, _ in self.filters)
        return _SQL.format(groups=groups, filters=filters)

    @property
    def params(self) -> dict[str, Parameter]:
        return {
            "tenant_id": self.tenant_id,
            "start_ms": self.start_ms,
            "end_ms": self.end_ms,
            "admitted_from_ms": self.start_ms - LOOKBACK_MS,
            "width_ms": self.width.milliseconds,
            "rows_max": ROWS_MAX + 1,
            **{name: list(values) for name, values in self.filters},
        }


_SQL = """SELECT
    intDiv(toUnixTimestamp64Milli(billed_at), {{width_ms:Int64}}) * {{width_ms:Int64}} AS bucket_ms{groups},
    currency,
    countIf(revision = 1) AS requests,
    sum(prompt_tokens) AS input_tokens,
    sum(cached_tokens) AS cached_tokens,
    sum(completion_tokens) AS output_tokens,
    sum(reasoning_tokens) AS reasoning_tokens,
    sum(cost) AS cost
FROM inference_requests_audit FINAL
WHERE tenant_id = {{tenant_id:String}}
    AND billed_at >= fromUnixTimestamp64Milli({{start_ms:Int64}}, 'UTC')
    AND billed_at < fromUnixTimestamp64Milli({{end_ms:Int64}}, 'UTC')
    AND admitted_at >= fromUnixTimestamp64Milli({{admitted_from_ms:Int64}}, 'UTC')
    AND admitted_at < fromUnixTimestamp64Milli({{end_ms:Int64}}, 'UTC'){filters}
GROUP BY bucket_ms{groups}, currency
ORDER BY bucket_ms{groups}, currency
LIMIT {{rows_max:UInt32}}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsagePlan:
    """One page: what to ask, and the buckets to lay the answer into."""

    question: UsageQuestion
    starts_ms: tuple[int, ...]
    next_page: str | None


def check_range(*, start_ms: int, end_ms: int, start: str, end: str) -> None:
    """Raises InvalidRequest for the field `start`; both are named as the caller's users know them."""
    if not 0 <= start_ms < end_ms:
        raise InvalidRequest(f"{start}: must be before {end}", param=start)
    if end_ms - start_ms > RANGE_MAX_MS:
        days = RANGE_MAX_MS // 86_400_000
        raise InvalidRequest(f"{start}: must be at most {days} days before {end}", param=start)


def plan_page(
    *,
    tenant_id: str,
    start_ms: int,
    end_ms: int,
    bucket_width: str,
    group_by: Sequence[str],
    filters: Mapping[str, Sequence[str]],
    limit: int | None,
    page: str | None,
) -> UsagePlan:
    """Check the question and cut its page. Raises InvalidRequest naming the field."""
    width = width_of(bucket_width)
    unknown = [name for name in group_by if name not in GROUPS]
    if unknown or len(set(group_by)) != len(group_by):
        raise InvalidRequest(f"group_by names each of {', '.join(GROUPS)} at most once", param="group_by")
    check_range(start_ms=start_ms, end_ms=end_ms, start="start_time", end="end_time, or now")
    if limit is not None and not 1 <= limit <= width.maximum:
        raise wrong_limit(bucket_width)
    given = tuple((name, tuple(values)) for name, values in sorted(filters.items()) if values)
    for name, values in given:
        if len(values) > FILTER_VALUES_MAX:
            raise InvalidRequest(f"at most {FILTER_VALUES_MAX} values", param=f"{name}s")
    starts = _bucket_starts(start_ms if page is None else _read_page(page, start_ms, end_ms, width), end_ms, width)
    shown = starts[: limit or width.default]
    rest = starts[len(shown) :]
    question = UsageQuestion(
        tenant_id=tenant_id,
        start_ms=shown[0],
        end_ms=rest[0] if rest else end_ms,
        width=width,
        group_by=tuple(group_by),
        filters=given,
    )
    return UsagePlan(question=question, starts_ms=tuple(shown), next_page=f"page_{rest[0]}" if rest else None)


def width_of(bucket_width: str) -> Width:
    """Raises InvalidRequest for a width that is none."""
    width = WIDTHS.get(bucket_width)
    if width is None:
        raise InvalidRequest(f"bucket_width is one of {', '.join(WIDTHS)}", param="bucket_width")
    return width


def wrong_limit(bucket_width: str) -> InvalidRequest:
    """What is said of every `limit` that cannot be, a word or a number. Raises InvalidRequest as `width_of`."""
    most = width_of(bucket_width).maximum
    return InvalidRequest(f"limit is a whole number from 1 to {most} for bucket_width {bucket_width}", param="limit")


def lay_out(plan: UsagePlan, rows: Sequence[Mapping[str, Any]]) -> UsagePage:
    """The page of buckets, also of those without usage. Raises InvalidRequest when the answer is too long."""
    if len(rows) > ROWS_MAX:
        raise InvalidRequest("too many groups: ask for fewer buckets or group_by fields", param="group_by")
    width_ms = plan.question.width.milliseconds
    results: dict[int, list[UsageResult]] = {}
    for row in rows:
        results.setdefault(row["bucket_ms"], []).append(_result(row, plan.question.group_by))
    ends = (*plan.starts_ms[1:], plan.question.end_ms)
    return UsagePage(
        buckets=tuple(
            UsageBucket(
                start_s=start // 1_000, end_s=-(-end // 1_000), results=tuple(results.get(start - start % width_ms, ()))
            )
            for start, end in zip(plan.starts_ms, ends, strict=True)
        ),
        next_page=plan.next_page,
    )


def _bucket_starts(start_ms: int, end_ms: int, width: Width) -> list[int]:
    """The first bucket begins at the range's start, the others on the grid of UTC."""
    first_on_grid = start_ms - start_ms % width.milliseconds + width.milliseconds
    return [start_ms, *range(first_on_grid, end_ms, width.milliseconds)]


def _read_page(page: str, start_ms: int, end_ms: int, width: Width) -> int:
    text = page.removeprefix("page_")
    at = int(text) if page.startswith("page_") and text.isascii() and text.isdigit() and len(text) <= 15 else -1
    if not start_ms < at < end_ms or at % width.milliseconds:
        raise InvalidRequest("page does not belong to this question", param="page")
    return at


def _result(row: Mapping[str, Any], group_by: Sequence[str]) -> UsageResult:
    groups = {name: str(row[GROUPS[name]]) for name in group_by}
    return UsageResult(
        input_tokens=row["input_tokens"],
        cached_tokens=row["cached_tokens"],
        output_tokens=row["output_tokens"],
        reasoning_tokens=row["reasoning_tokens"],
        requests=row["requests"],
        cost_nano=nano_from_decimal(row["cost"]),
        currency=row["currency"],
        **groups,
    )
