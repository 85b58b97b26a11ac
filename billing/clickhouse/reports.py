"""Questions to the usage tables and their answers as frozen shapes. Blocking; the reader is handed in.

Called by `billing.selectors`. Invariant: money and counts are read with FINAL, so a row that arrived twice counts once.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any
from uuid import UUID

from billing.clickhouse.shapes import (
    LatencyPercentiles,
    Percentiles,
    ReportLine,
    RequestRow,
    TimelineStep,
    UsagePage,
)
from billing.clickhouse.usage import LOOKBACK_MS, UsagePlan, lay_out
from billing.metering.histogram import percentile_us
from contracts.errors import InvalidRequest
from contracts.money import nano_from_decimal, text_from_nano
from stores.clickhouse import Parameter, Reader

RECENT_MAX = 500
_QUERIES = Path(__file__).parent / "queries"
_ID_SKEW_MS = 3_600_000  # an id is minted a moment before admission; the bound only keeps the scan small
_FAR_MS = 4_102_444_800_000
_FRACTIONS = (0.5, 0.9, 0.99)
# Columns that a RequestRow takes under the same name.
_AS_THEY_ARE = (
    *("request_id", "revision", "tenant_id", "project_id", "api_key_id", "pool", "endpoint", "service_class", "stream"),
    *("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "delivered_tokens", "ttft_ms"),
    *("itl_ms", "outcome", "finish_reason", "error_code", "attempt", "worker_id", "price_card_id", "currency"),
    *("log_key", "budget_cut"),
)


@cache
def query_text(name: str) -> str:
    """The text of `queries/<name>.sql`."""
    return (_QUERIES / f"{name}.sql").read_text(encoding="utf-8")


def read_page(reader: Reader, plan: UsagePlan) -> UsagePage:
    return lay_out(plan, reader.execute(plan.question.sql, plan.question.params))


def read_request(reader: Reader, *, request_id: str, tenant_id: str) -> RequestRow | None:
    """A request by its id; `tenant_id` "" = whichever tenant. An id that is no UUID is unknown."""
    try:
        parsed = UUID(request_id)
    except ValueError:
        return None
    bounds = {"admitted_from_ms": 0, "admitted_to_ms": _FAR_MS}
    if parsed.version == 7:
        minted_ms = parsed.int >> 80
        bounds = {"admitted_from_ms": max(0, minted_ms - _ID_SKEW_MS), "admitted_to_ms": minted_ms + _ID_SKEW_MS}
    rows = reader.execute(query_text("request_row"), {"request_id": str(parsed), "tenant_id": tenant_id, **bounds})
    return _request(rows[0]) if rows else None


def read_recent(reader: Reader, *, tenant_id: str, limit: int, before: str | None) -> list[RequestRow]:
    """Raises InvalidRequest for a limit or a cursor that is not ours."""
    if not 1 <= limit <= RECENT_MAX:
        raise InvalidRequest(f"limit is 1 to {RECENT_MAX}", param="limit")
    before_ms, before_id = _read_cursor(before)
    rows = reader.execute(
        query_text("recent_requests"),
        {"tenant_id": tenant_id, "limit": limit, "before_ms": before_ms, "before_id": before_id},
    )
    return [_request(row) for row in rows]


def read_latency(reader: Reader, *, tenant_id: str, model: str, start_ms: int, end_ms: int) -> LatencyPercentiles:
    params: dict[str, Parameter] = {"tenant_id": tenant_id, "model": model, "start_ms": start_ms, "end_ms": end_ms}
    row = reader.execute(query_text("latency"), params)[0]
    measured = row["ttft_count"] > 0
    return LatencyPercentiles(
        requests=row["requests"],
        output_tokens=row["output_tokens"],
        ttft=_percentiles([value if measured else None for value in row["ttft_quantiles_us"]]),
        itl=_percentiles([percentile_us(row["itl"], fraction) for fraction in _FRACTIONS]),
    )


def read_report(reader: Reader, *, tenant_id: str, start_ms: int, end_ms: int) -> list[ReportLine]:
    """Usage billed in [start_ms, end_ms) by model, key, outcome and currency."""
    params: dict[str, Parameter] = {
        "tenant_id": tenant_id,
        "start_ms": start_ms,
        "end_ms": end_ms,
        "admitted_from_ms": start_ms - LOOKBACK_MS,
    }
    return [
        ReportLine(
            model=row["model_name"],
            api_key_id=row["api_key_id"],
            outcome=row["outcome"],
            currency=row["currency"],
            requests=row["requests"],
            budget_stopped_requests=row["budget_stopped_requests"],
            input_tokens=row["input_tokens"],
            cached_tokens=row["cached_tokens"],
            output_tokens=row["output_tokens"],
            reasoning_tokens=row["reasoning_tokens"],
            cost_nano=nano_from_decimal(row["cost"]),
        )
        for row in reader.execute(query_text("usage_report"), params)
    ]


def _read_cursor(before: str | None) -> tuple[int, str]:
    if before is None:
        return _FAR_MS, ""
    at, _, request_id = before.partition(":")
    if not (at.isascii() and at.isdigit() and len(at) <= 15 and request_id):
        raise InvalidRequest("before is not a cursor of this list", param="before")
    return int(at), request_id


def _percentiles(values_us: Sequence[float | None]) -> Percentiles:
    p50, p90, p99 = (None if value is None else float(value) / 1_000 for value in values_us)
    return Percentiles(p50_ms=p50, p90_ms=p90, p99_ms=p99)


def _request(row: Mapping[str, Any]) -> RequestRow:
    return RequestRow(
        **{name: row[name] for name in _AS_THEY_ARE},
        model=row["model_name"],
        admitted_at_ms=_milliseconds(row["admitted_at"]),
        billed_at_ms=_milliseconds(row["billed_at"]),
        total_ms=row["total_us"] / 1_000,
        cost_nano=nano_from_decimal(row["cost"]),
        timeline=_timeline(row),
    )


def _timeline(row: Mapping[str, Any]) -> tuple[TimelineStep, ...]:
    """The nine steps of a request with where its time went."""
    cost = text_from_nano(nano_from_decimal(row["cost"]))
    policy = f"policy {row['policy_id']} v{row['policy_version']}" if row["policy_id"] else "no policy"
    guard_us = row["guard_us"] + row["output_guard_us"]
    steps = (
        ("EDGE", row["edge_us"], f"POST /v1/{row['endpoint']}{', streamed' if row['stream'] else ''}"),
        ("AUTH", None, f"key {row['api_key_id']} of project {row['project_id']}"),
        ("LIMITS", None, f"held for {row['prompt_tokens']} prompt tokens"),
        ("GUARDRAIL", guard_us, "; ".join([policy, *row["verdicts"]])),
        ("QUEUE", row["queue_us"], f"pool {row['pool']}, {row['service_class']}"),
        ("WORKER", row["prefill_us"], f"{row['worker_id'] or 'never claimed'}, attempt {row['attempt']}"),
        ("STREAM", row["decode_us"], f"{row['delivered_tokens']} tokens delivered"),
        ("METER", None, f"{row['outcome']}, {row['cached_tokens']} of {row['prompt_tokens']} prompt tokens cached"),
        ("BILL", None, f"{cost} {row['currency']}"),
    )
    return tuple(TimelineStep(step=step, duration_us=duration, detail=detail) for step, duration, detail in steps)


def _milliseconds(at: datetime) -> int:
    return round(at.timestamp() * 1_000)
