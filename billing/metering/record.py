"""A usage record as a row of `inference_requests_audit`.

Called by the meter's consumer. Invariants: the row depends on the record and its batch alone (no clock, no state), so
the same batch makes the same block again; what ClickHouse's CHECKs would refuse is refused here first, since there one
bad row refuses its whole block; cost comes from `billing.rating` and nowhere else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from billing.rating.rate import cost
from contracts.jobs import Timings, UsageRecord
from contracts.money import NANO_MAX, decimal_from_nano
from contracts.outcomes import Outcome

TABLE = "inference_requests_audit"
COLUMNS: tuple[str, ...] = (
    "request_id", "revision", "tenant_id", "project_id", "api_key_id", "end_user_hash", "model_name", "pool",
    "endpoint", "service_class", "stream", "admitted_at", "billed_at", "prompt_tokens", "cached_tokens",
    "completion_tokens", "reasoning_tokens", "delivered_tokens", "edge_us", "guard_us", "queue_us", "prefill_us",
    "decode_us", "output_guard_us", "ttft_us", "total_us", "itl", "itl_sum_us", "outcome", "finish_reason",
    "error_code", "attempt", "worker_id", "policy_id", "policy_version", "verdicts", "price_card_id", "currency",
    "price_input_nano", "price_cached_nano", "price_output_nano", "cost", "cost_input", "cost_cached", "cost_output",
    "log_key", "budget_cut", "batch_id", "ingested_at", "version",
)  # fmt: skip
FIRST_REVISION = 1  # the request itself; later ones are signed differences

_TOKENS_MAX = 2**31 - 1
_ATTEMPT_MAX = 2**16 - 1
_DURATION_MAX_US = 2**63
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_RANGE_MS = (946_684_800_000, 4_102_444_800_000)  # 2000 to 2100: what DateTime64(3) surely holds


class PoisonRecord(ValueError):
    """A usage record that can never become a row: it goes to the dead letters, which hold up the period's close."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What every row of one insert shares. Taken from the manifest, so that a repeat makes the same bytes."""

    batch_id: str
    created_at_ms: int


def check(record: UsageRecord) -> None:
    """Raises PoisonRecord, naming the field, when no row and no ledger entry can be made of `record`."""
    try:
        UUID(record.request_id)
        Outcome(record.outcome)
    except ValueError as error:
        raise PoisonRecord(str(error)) from error
    if not record.tenant_id or not record.model or len(record.price.currency) != 3:
        raise PoisonRecord("tenant, model and a currency of three letters are required")
    if record.revision != FIRST_REVISION:
        raise PoisonRecord(f"revision {record.revision} does not come from a usage stream")
    if not 0 <= record.attempt <= _ATTEMPT_MAX:
        raise PoisonRecord(f"attempt {record.attempt} is out of range")
    tokens = (record.counts.prompt, record.counts.completion, record.delivered_tokens)
    if min(tokens) < 0 or max(tokens) > _TOKENS_MAX:
        raise PoisonRecord("a token count is out of range")
    earliest_ms, latest_ms = sorted((record.admitted_at_ms, record.billed_at_ms))
    if earliest_ms < _TIME_RANGE_MS[0] or latest_ms >= _TIME_RANGE_MS[1]:
        raise PoisonRecord("admitted_at or billed_at is out of range")
    if cost(record.price, record.counts).total_nano > NANO_MAX:
        raise PoisonRecord("the cost passes the exact range")
    _check_timings(record.timings)


def build_row(record: UsageRecord, *, batch: Batch) -> tuple[Any, ...]:
    """Values in the order of COLUMNS. Raises PoisonRecord."""
    check(record)
    return row_of(record, batch=batch)


def row_of(record: UsageRecord, *, batch: Batch) -> tuple[Any, ...]:
    """Values in the order of COLUMNS, of a record that was checked."""
    return (*_identity(record), *_tokens(record), *_durations(record.timings), *_ending(record), *_money(record, batch))


def _check_timings(timings: Timings) -> None:
    numbers = (*_durations(timings)[:8], timings.itl_sum_us)
    if min(numbers) < 0 or max(numbers) >= _DURATION_MAX_US:
        raise PoisonRecord("a duration is out of range")
    buckets, counts = timings.itl.keys(), timings.itl.values()
    if buckets and (min(buckets) < 0 or max(buckets) >= 2**16 or min(counts) < 0 or max(counts) >= 2**32):
        raise PoisonRecord("a histogram bucket is out of range")


def _identity(record: UsageRecord) -> Sequence[Any]:
    return (
        record.request_id,
        record.revision,
        record.tenant_id,
        record.project_id,
        record.api_key_id,
        record.end_user_hash,
        record.model,
        record.pool,
        record.endpoint,
        record.service_class,
        record.stream,
        _instant(record.admitted_at_ms),
        _instant(record.billed_at_ms),
    )


def _tokens(record: UsageRecord) -> Sequence[int]:
    counts = record.counts
    return (counts.prompt, counts.cached, counts.completion, counts.reasoning, record.delivered_tokens)


def _durations(timings: Timings) -> Sequence[Any]:
    return (
        timings.edge_us,
        timings.guard_us,
        timings.queue_us,
        timings.prefill_us,
        timings.decode_us,
        timings.output_guard_us,
        timings.ttft_us,
        timings.total_us,
        dict(sorted(timings.itl.items())),
        timings.itl_sum_us,
    )


def _ending(record: UsageRecord) -> Sequence[Any]:
    return (
        record.outcome,
        record.finish_reason,
        record.error_code,
        record.attempt,
        record.worker_id,
        record.policy_id,
        record.policy_version,
        list(record.verdicts),
    )


def _money(record: UsageRecord, batch: Batch) -> Sequence[Any]:
    price, parts = record.price, cost(record.price, record.counts)
    return (
        price.card_id,
        price.currency,
        price.input_nano,
        price.cached_nano,
        price.output_nano,
        decimal_from_nano(parts.total_nano),
        decimal_from_nano(parts.input_nano),
        decimal_from_nano(parts.cached_nano),
        decimal_from_nano(parts.output_nano),
        record.log_key,
        record.budget_cut,
        batch.batch_id,
        _instant(batch.created_at_ms),
        # ReplacingMergeTree keeps the highest version: the lowest attempt wins.
        _ATTEMPT_MAX - record.attempt,
    )


def _instant(at_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=at_ms)
