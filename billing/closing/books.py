"""The books that a close compares, read side by side: ClickHouse, the ledger, the workers' attempts.

Called by `billing.closing.check`. Blocking. Invariant: every book is read for the same half-open span of `billed_at`,
which Redis gave when the request ended; an attempt log has its worker's own clock and is matched by id instead.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import orjson
from django.db import connection

from billing.clickhouse.reports import query_text
from billing.clickhouse.usage import LOOKBACK_MS
from billing.closing.compare import BookedRequest, HourCount, LoggedAttempt, NamedLog
from billing.rating.periods import Span
from contracts.money import nano_from_decimal
from stores.clickhouse import Parameter, Reader, Row

PAGE = 20_000
_CLOCK_SKEW_MS = 3_600_000  # between a worker and Redis


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedUsage:
    """Tokens of one price card in a span, as ClickHouse sums them. Costs in nano-units: input, cached, output."""

    model: str
    service_class: str
    card_id: str
    currency: str
    units: tuple[int, int, int]
    tokens: tuple[int, int, int]
    costs: tuple[int, int, int]


def metered_hours(reader: Reader, *, tenant_id: str, span: Span) -> list[HourCount]:
    """ClickHouse's hours. Raises stores.clickhouse.ClickHouseError."""
    rows = reader.execute(query_text("close_hours"), _params(tenant_id, span))
    return [
        HourCount(
            hour_ms=row["hour_ms"],
            currency=row["currency"],
            requests=row["requests"],
            prompt_tokens=row["prompt_tokens"],
            cached_tokens=row["cached_tokens"],
            completion_tokens=row["completion_tokens"],
            cost_nano=nano_from_decimal(row["cost"]),
            fingerprint=row["fingerprint"],
        )
        for row in rows
    ]


def metered_requests(reader: Reader, *, tenant_id: str, span: Span) -> Iterator[BookedRequest]:
    """ClickHouse's rows in the order of their ids, page by page."""
    after_id, after_revision = "", 0
    while True:
        params = {**_params(tenant_id, span), "after_id": after_id, "after_revision": after_revision, "limit": PAGE}
        rows = reader.execute(query_text("close_requests"), params)
        for row in rows:
            yield BookedRequest(
                request_id=str(row["request_id"]),
                revision=row["revision"],
                currency=row["currency"],
                prompt_tokens=row["prompt_tokens"],
                cached_tokens=row["cached_tokens"],
                completion_tokens=row["completion_tokens"],
                cost_nano=nano_from_decimal(row["cost"]),
                attempt=row["attempt"],
                worker_id=row["worker_id"],
                outcome=row["outcome"],
                hour_ms=row["hour_ms"],
            )
        if len(rows) < PAGE:
            return
        after_id, after_revision = str(rows[-1]["request_id"]), rows[-1]["revision"]


def metered_usage(reader: Reader, *, tenant_id: str, span: Span) -> list[PricedUsage]:
    """ClickHouse's tokens by price card."""

    def three(row: Row, *names: str) -> tuple[int, int, int]:
        one, two, three = (row[name] for name in names)
        return one, two, three

    def nano(row: Row) -> tuple[int, int, int]:
        one, two, three = (nano_from_decimal(row[f"amount_{name}"]) for name in ("input", "cached", "output"))
        return one, two, three

    return [
        PricedUsage(
            model=row["model_name"],
            service_class=row["service_class"],
            card_id=row["price_card_id"],
            currency=row["currency"],
            units=three(row, "price_input_nano", "price_cached_nano", "price_output_nano"),
            tokens=three(row, "tokens_input", "tokens_cached", "tokens_output"),
            costs=nano(row),
        )
        for row in reader.execute(query_text("close_usage"), _params(tenant_id, span))
    ]


_POSTED_HOURS = """
SELECT
    (extract(epoch FROM billed_at) * 1000)::bigint / 3600000 * 3600000,
    currency,
    count(*),
    coalesce(sum(prompt_tokens), 0)::bigint,
    coalesce(sum(cached_tokens), 0)::bigint,
    coalesce(sum(completion_tokens), 0)::bigint,
    sum(amount),
    bit_xor(('x' || left(md5(request_id::text || '/' || revision::text), 16))::bit(64)::bigint)
FROM billing_usageposting
WHERE tenant_id = %s AND billed_at >= %s AND billed_at < %s
GROUP BY 1, 2 ORDER BY 1, 2"""


def posted_hours(*, tenant_id: str, span: Span) -> list[HourCount]:
    """The ledger's hours. Raises django.db.Error."""
    with connection.cursor() as cursor:
        cursor.execute(_POSTED_HOURS, [tenant_id, span.start, span.end])
        return [
            HourCount(
                hour_ms=hour_ms,
                currency=currency,
                requests=requests,
                prompt_tokens=prompt,
                cached_tokens=cached,
                completion_tokens=completion,
                cost_nano=nano_from_decimal(amount),
                fingerprint=fingerprint,
            )
            for hour_ms, currency, requests, prompt, cached, completion, amount, fingerprint in cursor.fetchall()
        ]


def posted_requests(*, tenant_id: str, span: Span) -> list[BookedRequest]:
    """The ledger's requests of one hour. Tokens are unknown of what was posted before they were kept."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT request_id, revision, currency, prompt_tokens, cached_tokens, completion_tokens, amount "
            "FROM billing_usageposting WHERE tenant_id = %s AND billed_at >= %s AND billed_at < %s",
            [tenant_id, span.start, span.end],
        )
        return [
            BookedRequest(
                request_id=str(request_id),
                revision=revision,
                currency=currency,
                prompt_tokens=prompt or 0,
                cached_tokens=cached or 0,
                completion_tokens=completion or 0,
                cost_nano=nano_from_decimal(amount),
                tokens_known=prompt is not None,
            )
            for request_id, revision, currency, prompt, cached, completion, amount in cursor.fetchall()
        ]


def collected_attempts(reader: Reader, *, tenant_id: str, span: Span) -> Iterator[tuple[int, LoggedAttempt]]:
    """Attempts that were collected from the workers' logs, by the worker's own clock, an hour more on each side."""
    params: dict[str, Parameter] = {
        "tenant_id": tenant_id,
        "start_ms": span.start_ms - _CLOCK_SKEW_MS,
        "end_ms": span.end_ms + _CLOCK_SKEW_MS,
        "limit": PAGE,
    }
    after_id, after_attempt = "", 0
    while True:
        page = {**params, "after_id": after_id, "after_attempt": after_attempt}
        rows = reader.execute(query_text("close_attempts"), page)
        for row in rows:
            yield (
                row["ended_at_ms"],
                LoggedAttempt(
                    request_id=str(row["request_id"]),
                    attempt=row["attempt"],
                    prompt_tokens=row["prompt_tokens"],
                    cached_tokens=row["cached_tokens"],
                    completion_tokens=row["completion_tokens"],
                    outcome=row["outcome"],
                ),
            )
        if len(rows) < PAGE:
            return
        after_id, after_attempt = str(rows[-1]["request_id"]), rows[-1]["attempt"]


def logged_attempts(folders: Iterable[Path], *, tenant_id: str, span: Span) -> list[tuple[int, LoggedAttempt]]:
    """The same of attempt logs in `folders`: of machines where nothing collects them.

    A line that a crash cut is left out. Raises OSError for a folder that is not there.
    """
    found = []
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder} is no folder of attempt logs")
        for path in sorted(folder.glob("*.jsonl*")):
            with path.open("rb") as file:
                for line in file:
                    if tenant_id.encode() not in line or not line.endswith(b"\n"):
                        continue
                    fields = orjson.loads(line)
                    at_ms = int(fields["billed_at_ms"])
                    near = span.start_ms - _CLOCK_SKEW_MS <= at_ms < span.end_ms + _CLOCK_SKEW_MS
                    if fields["tenant_id"] == tenant_id and near:
                        found.append((at_ms, _attempt(fields)))
    return found


def pool_hours(reader: Reader, *, tenant_id: str, pool: str, span: Span) -> dict[int, tuple[int, int]]:
    """ClickHouse's requests and tokens of one pool by hour."""
    rows = reader.execute(query_text("close_pool_hours"), {**_params(tenant_id, span), "pool": pool})
    return {row["hour_ms"]: (row["requests"], row["tokens"]) for row in rows}


def named_logs(reader: Reader, *, tenant_id: str, span: Span) -> Iterator[NamedLog]:
    """Evaluation logs that ClickHouse's rows name, in the order of the requests' ids."""
    after_id = ""
    while True:
        params = {**_params(tenant_id, span), "after_id": after_id, "limit": PAGE}
        rows = reader.execute(query_text("close_logs"), params)
        for row in rows:
            yield NamedLog(request_id=str(row["request_id"]), key=row["log_key"], hour_ms=row["hour_ms"])
        if len(rows) < PAGE:
            return
        after_id = str(rows[-1]["request_id"])


def _attempt(fields: dict[str, object]) -> LoggedAttempt:
    counts, attempt = fields["counts"], fields["attempt"]
    assert isinstance(counts, dict)
    assert isinstance(attempt, int)
    return LoggedAttempt(
        request_id=str(UUID(str(fields["request_id"]))),
        attempt=attempt,
        prompt_tokens=int(counts["prompt"]),
        cached_tokens=int(counts["cached"]),
        completion_tokens=int(counts["completion"]),
        outcome=str(fields["outcome"]),
    )


def _params(tenant_id: str, span: Span) -> dict[str, Parameter]:
    return {
        "tenant_id": tenant_id,
        "start_ms": span.start_ms,
        "end_ms": span.end_ms,
        "admitted_from_ms": span.start_ms - LOOKBACK_MS,
    }
