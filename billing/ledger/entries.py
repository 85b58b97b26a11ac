"""Posts usage to the ledger: one database transaction for a batch, one ledger transaction per tenant and currency.

Called by `billing.ledger.posting`. Invariant: a (request, revision) is posted once, whoever posts it how often and
together with what; the unique row of `UsagePosting` decides it inside the same transaction as the entries.
"""

import hashlib
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.db import connection, transaction
from django.db.models import Q

from billing.metering.faults import fault_point
from billing.models import USAGE, AccountKind, LedgerAccount, LedgerEntry, LedgerTransaction, UsagePosting, new_id

STATEMENT_TIMEOUT_MS = 30_000
LOCK_TIMEOUT_MS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageLine:
    """What the ledger takes of one usage record. `amount` is exact, in currency units."""

    request_id: uuid.UUID
    revision: int
    tenant_id: uuid.UUID
    currency: str
    amount: Decimal
    billed_at: datetime
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    @property
    def key(self) -> tuple[uuid.UUID, int]:
        return self.request_id, self.revision

    @property
    def owed(self) -> tuple[uuid.UUID, str, Decimal]:
        return self.tenant_id, self.currency, self.amount


@dataclass(frozen=True, slots=True, kw_only=True)
class PostReport:
    """`posted` lines were new. `differing` owe something else than what stands under their key: a fault to explain."""

    posted: int
    repeated: int
    differing: frozenset[UsageLine]


def post_usage(lines: Sequence[UsageLine], *, at: datetime) -> PostReport:
    """Post what is new of `lines`. All or nothing; a repeat posts nothing.

    Raises django.db.Error. Every tenant must exist (`billing.customers.known_tenants`).
    """
    # Two settlers that insert the same rows in one order wait for each other instead of dead-locking.
    first: dict[tuple[uuid.UUID, int], UsageLine] = {}
    for line in sorted(lines, key=lambda line: line.key):
        first.setdefault(line.key, line)
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL statement_timeout = {STATEMENT_TIMEOUT_MS:d}")
            cursor.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS:d}")
        groups = {(line.tenant_id, line.currency): new_id() for line in first.values()}
        posted = _insert_new(list(first.values()), groups)
        _write_transactions([first[key] for key in posted], groups, at)
        stored = {key: first[key].owed for key in posted} | _stored([key for key in first if key not in posted])
        fault_point("ledger.before_commit")
    return PostReport(
        posted=len(posted),
        repeated=len(lines) - len(posted),
        differing=frozenset(line for line in lines if stored[line.key] != line.owed),
    )


_INSERT = """INSERT INTO billing_usageposting
(request_id, revision, tenant_id, currency, amount, billed_at, prompt_tokens, cached_tokens, completion_tokens,
transaction_id)
SELECT * FROM unnest(%s::uuid[], %s::smallint[], %s::uuid[], %s::text[], %s::numeric[], %s::timestamptz[], %s::int[],
%s::int[], %s::int[], %s::uuid[])
ON CONFLICT (request_id, revision) DO NOTHING
RETURNING request_id, revision"""


def _insert_new(
    lines: Sequence[UsageLine], groups: dict[tuple[uuid.UUID, str], uuid.UUID]
) -> set[tuple[uuid.UUID, int]]:
    columns = (
        [line.request_id for line in lines],
        [line.revision for line in lines],
        [line.tenant_id for line in lines],
        [line.currency for line in lines],
        [line.amount for line in lines],
        [line.billed_at for line in lines],
        [line.prompt_tokens for line in lines],
        [line.cached_tokens for line in lines],
        [line.completion_tokens for line in lines],
        [groups[line.tenant_id, line.currency] for line in lines],
    )
    with connection.cursor() as cursor:
        cursor.execute(_INSERT, columns)
        return {(request_id, revision) for request_id, revision in cursor.fetchall()}


def _write_transactions(
    fresh: Sequence[UsageLine], groups: dict[tuple[uuid.UUID, str], uuid.UUID], at: datetime
) -> None:
    """A receivable against revenue for every group that has new lines."""
    by_group: dict[tuple[uuid.UUID, str], list[UsageLine]] = {}
    for line in fresh:
        by_group.setdefault((line.tenant_id, line.currency), []).append(line)
    accounts = _accounts(by_group)
    transactions, entries = [], []
    for (tenant_id, currency), lines in by_group.items():
        ledger_id = groups[tenant_id, currency]
        total = sum((line.amount for line in lines), Decimal(0))
        transactions.append(
            LedgerTransaction(
                id=ledger_id,
                idempotency_key=_idempotency_key(lines),
                currency=currency,
                description=f"Usage of {len(lines)} request{'s' if len(lines) != 1 else ''}",
                posted_at=at,
            )
        )
        if total:
            receivable = accounts[tenant_id, AccountKind.RECEIVABLE.value, currency]
            revenue = accounts[None, AccountKind.REVENUE.value, currency]
            entries.append(LedgerEntry(transaction_id=ledger_id, account_id=receivable, amount=total))
            entries.append(LedgerEntry(transaction_id=ledger_id, account_id=revenue, amount=-total))
    LedgerTransaction.objects.bulk_create(transactions)
    LedgerEntry.objects.bulk_create(entries)


def _accounts(groups: Iterable[tuple[uuid.UUID, str]]) -> dict[tuple[uuid.UUID | None, str, str], uuid.UUID]:
    """Ids of the accounts of these tenants, made where missing."""
    wanted: list[tuple[uuid.UUID | None, str, str]] = []
    for tenant_id, currency in groups:
        wanted.append((tenant_id, AccountKind.RECEIVABLE.value, currency))
        wanted.append((None, AccountKind.REVENUE.value, currency))
    missing = dict.fromkeys(wanted)
    condition = Q(kind=AccountKind.REVENUE, tenant=None) | Q(
        kind=AccountKind.RECEIVABLE, tenant_id__in={tenant_id for tenant_id, _, _ in wanted if tenant_id}
    )

    def read() -> dict[tuple[uuid.UUID | None, str, str], uuid.UUID]:
        rows = LedgerAccount.objects.filter(condition).values_list("tenant_id", "kind", "currency", "id")
        return {(tenant_id, kind, currency): account_id for tenant_id, kind, currency, account_id in rows}

    known = read()
    absent = [key for key in missing if key not in known]
    if absent:
        LedgerAccount.objects.bulk_create(
            [LedgerAccount(tenant_id=tenant_id, kind=kind, currency=currency) for tenant_id, kind, currency in absent],
            ignore_conflicts=True,
        )
        known = read()
    return known


def _idempotency_key(lines: Iterable[UsageLine]) -> str:
    """The set of requests is the key: no other transaction may hold any of them."""
    names = sorted(f"{line.request_id}/{line.revision}" for line in lines)
    return USAGE + hashlib.sha256("\n".join(names).encode()).hexdigest()


def _stored(keys: Sequence[tuple[uuid.UUID, int]]) -> dict[tuple[uuid.UUID, int], tuple[uuid.UUID, str, Decimal]]:
    """What the ledger has for lines that were posted before."""
    if not keys:
        return {}
    rows = UsagePosting.objects.filter(request_id__in=[request_id for request_id, _ in keys]).values_list(
        "request_id", "revision", "tenant_id", "currency", "amount"
    )
    return {
        (request_id, revision): (tenant, currency, amount) for request_id, revision, tenant, currency, amount in rows
    }
