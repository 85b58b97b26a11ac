"""The ledger in real PostgreSQL: balanced, append-only, each request posted once however it comes."""

import uuid
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import Sum
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing.ledger.entries import UsageLine, post_usage
from billing.models import LedgerAccount, LedgerEntry, LedgerTransaction, UsagePosting
from billing.selectors import ledger_totals, posted_nano, receivable_nano
from tenants.models import Tenant

pytestmark = pytest.mark.django_db

AT = datetime(2027, 1, 1, tzinfo=UTC)
AT_MS = int(AT.timestamp() * 1_000)


def line(tenant: Tenant, *, nano: int = 1_500, request_id: uuid.UUID | None = None, currency: str = "USD") -> UsageLine:
    return UsageLine(
        request_id=request_id or uuid.uuid4(),
        revision=1,
        tenant_id=tenant.pk,
        currency=currency,
        amount=Decimal(nano).scaleb(-9),
        billed_at=AT,
    )


def check_deferred() -> None:
    """Let the deferred triggers speak now: the test's transaction is never committed."""
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("SET CONSTRAINTS ALL DEFERRED")


class TestPostUsage:
    def test_makes_one_balanced_transaction_for_each_payer(self, tenants: dict[str, Tenant]) -> None:
        acme, basic = tenants["acme"], tenants["basic"]
        lines = [line(acme), line(acme, nano=1), line(basic, nano=7, currency="EUR")]
        report = post_usage(lines, at=AT)
        check_deferred()
        assert (report.posted, report.repeated, report.differing) == (3, 0, frozenset())
        assert receivable_nano(tenant_id=str(acme.pk), currency="USD") == 1_501
        assert receivable_nano(tenant_id=str(basic.pk), currency="EUR") == 7
        assert LedgerTransaction.objects.count() == 2
        assert LedgerEntry.objects.filter(account__kind="revenue").aggregate(sum=Sum("amount"))["sum"] == Decimal(
            "-0.000001508"
        )

    def test_posts_nothing_when_a_batch_comes_again_in_another_cut(self, tenants: dict[str, Tenant]) -> None:
        first, second, third = (line(tenants["acme"], nano=nano) for nano in (10, 20, 30))
        post_usage([first, second], at=AT)
        again = post_usage([third, second, first], at=AT)
        assert (again.posted, again.repeated) == (1, 2)
        assert receivable_nano(tenant_id=str(tenants["acme"].pk), currency="USD") == 60

    def test_takes_a_double_within_one_batch_once(self, tenants: dict[str, Tenant]) -> None:
        one = line(tenants["acme"], nano=10)
        report = post_usage([one, one], at=AT)
        assert (report.posted, report.repeated, report.differing) == (1, 1, frozenset())
        assert posted_nano(tenant_id=str(tenants["acme"].pk), currency="USD") == 10

    def test_points_at_a_record_that_differs_from_what_was_posted(self, tenants: dict[str, Tenant]) -> None:
        one = line(tenants["acme"], nano=10)
        dearer = replace(one, amount=Decimal(11).scaleb(-9))
        stranger = replace(one, tenant_id=tenants["basic"].pk)
        assert post_usage([one, dearer], at=AT).differing == {dearer}
        assert post_usage([stranger, one], at=AT).differing == {stranger}
        assert receivable_nano(tenant_id=str(tenants["acme"].pk), currency="USD") == 10

    def test_records_requests_that_cost_nothing(self, tenants: dict[str, Tenant]) -> None:
        post_usage([line(tenants["acme"], nano=0)], at=AT)
        check_deferred()
        assert LedgerEntry.objects.count() == 0
        totals = ledger_totals(tenant_id=str(tenants["acme"].pk), start_ms=AT_MS, end_ms=AT_MS + 1)
        assert (totals["USD"].requests, totals["USD"].cost_nano) == (1, 0)

    def test_counts_a_period_as_half_open(self, tenants: dict[str, Tenant]) -> None:
        post_usage([line(tenants["acme"], nano=5)], at=AT)
        tenant_id = str(tenants["acme"].pk)
        assert ledger_totals(tenant_id=tenant_id, start_ms=AT_MS - 5, end_ms=AT_MS) == {}
        assert ledger_totals(tenant_id=tenant_id, start_ms=AT_MS, end_ms=AT_MS + 1)["USD"].cost_nano == 5

    @settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    @given(
        amounts=st.lists(st.integers(0, 9_000_000_000), min_size=1, max_size=12),
        batches=st.lists(st.lists(st.integers(0, 11), max_size=12), min_size=1, max_size=5),
    )
    def test_conserves_money_for_any_cut_and_repeat(
        self, tenants: dict[str, Tenant], amounts: list[int], batches: list[list[int]]
    ) -> None:
        everyone = list(tenants.values())
        lines = [line(everyone[n % 2], nano=nano) for n, nano in enumerate(amounts)]
        before = LedgerEntry.objects.filter(amount__gt=0).aggregate(sum=Sum("amount"))["sum"] or 0
        for batch in batches:
            post_usage([lines[n % len(lines)] for n in batch], at=AT)
        check_deferred()
        seen = {n % len(lines) for batch in batches for n in batch}
        after = LedgerEntry.objects.filter(amount__gt=0).aggregate(sum=Sum("amount"))["sum"] or 0
        assert after - before == sum((lines[n].amount for n in seen), Decimal(0))
        assert (LedgerEntry.objects.aggregate(sum=Sum("amount"))["sum"] or 0) == 0
        for tenant in everyone:
            tenant_id = str(tenant.pk)
            assert posted_nano(tenant_id=tenant_id, currency="USD") == receivable_nano(
                tenant_id=tenant_id, currency="USD"
            )


class TestDatabase:
    def accounts(self, tenant: Tenant) -> tuple[LedgerAccount, LedgerAccount, LedgerTransaction]:
        receivable = LedgerAccount.objects.create(tenant=tenant, kind="receivable", currency="USD")
        revenue = LedgerAccount.objects.create(kind="revenue", currency="USD")
        ledger = LedgerTransaction.objects.create(
            idempotency_key="k", currency="USD", description="by hand", posted_at=AT
        )
        return receivable, revenue, ledger

    def test_refuses_entries_that_do_not_sum_to_zero(self, tenants: dict[str, Tenant]) -> None:
        receivable, revenue, ledger = self.accounts(tenants["acme"])
        LedgerEntry.objects.create(transaction=ledger, account=receivable, amount=Decimal("1.000000001"))
        LedgerEntry.objects.create(transaction=ledger, account=revenue, amount=Decimal(-1))
        with pytest.raises(IntegrityError, match=r"out of balance by 0\.000000001"):
            check_deferred()

    def test_refuses_an_entry_in_another_currency(self, tenants: dict[str, Tenant]) -> None:
        receivable, _, ledger = self.accounts(tenants["acme"])
        euro = LedgerAccount.objects.create(kind="revenue", currency="EUR")
        LedgerEntry.objects.create(transaction=ledger, account=receivable, amount=1)
        LedgerEntry.objects.create(transaction=ledger, account=euro, amount=-1)
        with pytest.raises(IntegrityError, match="another currency"):
            check_deferred()

    def test_refuses_to_change_or_delete_what_was_posted(self, tenants: dict[str, Tenant]) -> None:
        post_usage([line(tenants["acme"])], at=AT)
        check_deferred()
        for model, change in (
            (LedgerEntry, {"amount": 0}),
            (LedgerTransaction, {"description": "x"}),
            (LedgerAccount, {"currency": "EUR"}),
            (UsagePosting, {"amount": 0}),
        ):
            with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
                model.objects.update(**change)  # type: ignore[attr-defined]
            with (
                connection.cursor() as cursor,
                pytest.raises(IntegrityError, match="append-only"),
                transaction.atomic(),
            ):
                cursor.execute(f"DELETE FROM {model._meta.db_table}")

    def test_refuses_an_idempotency_key_twice(self, tenants: dict[str, Tenant]) -> None:
        self.accounts(tenants["acme"])
        with pytest.raises(IntegrityError, match="idempotency_key"), transaction.atomic():
            LedgerTransaction.objects.create(idempotency_key="k", currency="USD", description="again", posted_at=AT)
