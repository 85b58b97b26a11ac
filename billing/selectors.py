"""Reads of the billing room: the price of a model (PostgreSQL) and the usage behind bills (ClickHouse).

Called by the gateway's wiring, the admin and management commands. All functions block: async callers cross by a thread.
Invariants: a price is chosen by the time of admission; usage questions fail closed when the store is away.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from uuid import UUID

from django.conf import settings
from django.db.models import Q, Sum

from billing.clickhouse.reports import read_latency, read_page, read_recent, read_report, read_request
from billing.clickhouse.shapes import LatencyPercentiles, LedgerTotals, ReportLine, RequestRow, UsagePage
from billing.clickhouse.usage import plan_page
from billing.customers import find_payer
from billing.models import USAGE, AccountKind, LedgerEntry, PriceVersion, UsagePosting
from billing.rating.prices import Meter, UnitPrice, build_card
from contracts.money import PriceCard, nano_from_decimal
from contracts.tenancy import ServiceClass
from stores.clickhouse import Reader
from stores.clickhouse_url import open_clickhouse


@lru_cache(maxsize=1)
def usage_reader() -> Reader:
    """This process's reader of the usage tables, by CLICKHOUSE_URL."""
    return open_clickhouse(settings.ENV.clickhouse)


def price_card(
    *,
    tenant_id: str,
    model: str,
    at_ms: int,
    currency: str | None = None,
    service_class: str = ServiceClass.INTERACTIVE,
) -> PriceCard | None:
    """The approved prices in force at `at_ms` for this tenant and model, meter by meter: the tenant's own price, else
    its plan's list's, else what everybody pays; of one owner's, that of the class before that of every class.

    `currency` None = the tenant's. None when one of the three meters has no price: such a model is refused, never
    served free.
    """
    payer = find_payer(tenant_id=tenant_id)
    at, price_list_id = _instant(at_ms), payer.price_list_id if payer else None
    found = PriceVersion.objects.filter(
        Q(tenant_id=tenant_id) | Q(tenant=None, price_list=None) | _of_list(price_list_id),
        Q(valid_to=None) | Q(valid_to__gt=at),
        ~Q(approved_by=""),
        model=model,
        service_class__in=("", service_class),
        valid_from__lte=at,
        currency=currency or (payer.currency if payer else None),
    )
    # The most general first, so that the more special overwrite them.
    chosen = {price.meter: price for price in sorted(found, key=_rank)}
    if len(chosen) < len(Meter):
        return None
    return build_card(
        tuple(
            UnitPrice(
                price_id=str(price.pk), meter=Meter(meter), per_million=price.per_million, currency=price.currency
            )
            for meter, price in chosen.items()
        )
    )


def _of_list(price_list_id: UUID | None) -> Q:
    return Q(pk__in=()) if price_list_id is None else Q(price_list_id=price_list_id)


def _rank(price: PriceVersion) -> tuple[int, bool]:
    owner = 2 if price.tenant_id is not None else int(price.price_list_id is not None)
    return owner, price.service_class != ""


def usage_buckets(
    *,
    tenant_id: str,
    start_ms: int,
    end_ms: int,
    bucket_width: str = "1d",
    group_by: Sequence[str] = (),
    models: Sequence[str] = (),
    project_ids: Sequence[str] = (),
    api_key_ids: Sequence[str] = (),
    limit: int | None = None,
    page: str | None = None,
    reader: Reader | None = None,
) -> UsagePage:
    """Usage billed in [start_ms, end_ms) by time bucket, in OpenAI's shape (`UsagePage.as_json()`).

    Raises contracts.errors.InvalidRequest naming the field (bucket_width 1m|1h|1d, group_by model|project_id|
    api_key_id), stores.clickhouse.ClickHouseUnavailable.
    """
    plan = plan_page(
        tenant_id=tenant_id,
        start_ms=start_ms,
        end_ms=end_ms,
        bucket_width=bucket_width,
        group_by=group_by,
        filters={"model": models, "project_id": project_ids, "api_key_id": api_key_ids},
        limit=limit,
        page=page,
    )
    return read_page(reader or usage_reader(), plan)


def request_row(*, request_id: str, tenant_id: str | None = None, reader: Reader | None = None) -> RequestRow | None:
    """One metered request with its nine-step timeline; None when unknown here or another tenant's.

    `tenant_id` None = any tenant (the operator's view). Raises stores.clickhouse.ClickHouseUnavailable.
    """
    return read_request(reader or usage_reader(), request_id=request_id, tenant_id=_scope(tenant_id))


def recent_requests(
    *, tenant_id: str | None = None, limit: int = 50, before: str | None = None, reader: Reader | None = None
) -> list[RequestRow]:
    """Newest first, at most 500. `before` = `RequestRow.cursor` of the last row of the page before.

    Raises contracts.errors.InvalidRequest, stores.clickhouse.ClickHouseUnavailable.
    """
    return read_recent(reader or usage_reader(), tenant_id=_scope(tenant_id), limit=limit, before=before)


def latency_percentiles(
    *,
    start_ms: int,
    end_ms: int,
    tenant_id: str | None = None,
    model: str | None = None,
    reader: Reader | None = None,
) -> LatencyPercentiles:
    """Percentiles 50, 90 and 99 of TTFT and of the time between tokens, over requests admitted in the period."""
    return read_latency(
        reader or usage_reader(), tenant_id=_scope(tenant_id), model=model or "", start_ms=start_ms, end_ms=end_ms
    )


def usage_report(*, tenant_id: str, start_ms: int, end_ms: int, reader: Reader | None = None) -> list[ReportLine]:
    """Usage billed in [start_ms, end_ms) by model, key, outcome and currency, from ClickHouse."""
    return read_report(reader or usage_reader(), tenant_id=tenant_id, start_ms=start_ms, end_ms=end_ms)


def ledger_totals(*, tenant_id: str, start_ms: int, end_ms: int) -> dict[str, LedgerTotals]:
    """What the ledger has for usage billed in [start_ms, end_ms), by currency; the other side of `usage_report`."""
    posted = UsagePosting.objects.filter(
        tenant_id=tenant_id, billed_at__gte=_instant(start_ms), billed_at__lt=_instant(end_ms)
    )
    rows = posted.values_list("currency").annotate(total=Sum("amount")).order_by("currency")
    counts = {currency: posted.filter(currency=currency).count() for currency, _ in rows}
    return {
        currency: LedgerTotals(requests=counts[currency], cost_nano=nano_from_decimal(total))
        for currency, total in rows
    }


def receivable_nano(*, tenant_id: str, currency: str) -> int:
    """What the tenant owes by the entries themselves: usage and invoices, less credit and payments."""
    total = LedgerEntry.objects.filter(
        account__tenant_id=tenant_id, account__kind=AccountKind.RECEIVABLE, account__currency=currency
    ).aggregate(total=Sum("amount"))["total"]
    return nano_from_decimal(total or Decimal(0))


def posted_nano(*, tenant_id: str, currency: str) -> int:
    """What was posted for the tenant request by request, over all time: `receivable_nano` before any invoice."""
    total = UsagePosting.objects.filter(tenant_id=tenant_id, currency=currency).aggregate(total=Sum("amount"))["total"]
    return nano_from_decimal(total or Decimal(0))


def lifetime_credit_nano(*, tenant_id: UUID, currency: str) -> int:
    """What a prepaid tenant may spend over all time: the cap of what it has spent over all time. Never negative.

    What it may still spend is its prepaid balance less what it owes: with debits positive, minus the sum of all entries
    of its two accounts. Of these, the entries of usage sum to what it has spent, P, and let N be minus the sum of the
    others: it may still spend N - P, so over all time N. A grant raises N, and so does a payment; an expiry lowers it,
    and what an invoice says beside usage (tax, a minimum, a discount) does as it says. An invoice that burns credit
    moves it from one account to the other: N stays. So N does not depend on usage and cannot race with it, and the
    counter of P is kept, held and settled by the limits, where no balance needs to be passed to be noticed.
    """
    entries = LedgerEntry.objects.filter(
        account__tenant_id=tenant_id,
        account__kind__in=(AccountKind.PREPAID_CREDIT, AccountKind.RECEIVABLE),
        account__currency=currency,
    ).exclude(transaction__idempotency_key__startswith=USAGE)
    return max(0, -nano_from_decimal(entries.aggregate(total=Sum("amount"))["total"] or Decimal(0)))


def _scope(tenant_id: str | None) -> str:
    """The queries read "" as every tenant; an empty id from a caller must never mean that."""
    if tenant_id == "":
        raise ValueError("an empty tenant id is nobody")
    return tenant_id or ""


def _instant(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1_000, tz=UTC)
