"""Numbers and documents when several issue at once, each on a connection of its own."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from decimal import Decimal
from threading import Barrier

import pytest
from django.db import connections

from billing.closing.close import open_periods
from billing.invoicing.issue import issue_document
from billing.ledger.credits import balance_nano, grant_credit
from billing.models import BillingPeriod, BillingProfile, CreditMovement, Invoice, Issuer, PeriodHour, PeriodUsage
from tenants.models import Tenant
from tests.functional.billing.months import NOW

TENANTS, THREADS = 3, 4


def sealed(tenant: Tenant) -> BillingPeriod:
    """With 10.00 of usage."""
    Tenant.objects.filter(pk=tenant.pk).update(created_at=datetime(2026, 11, 10, tzinfo=NOW.tzinfo))
    address = {"street": "1", "postal_code": "1", "city": "C", "country": "US"}
    Issuer.objects.get_or_create(defaults={"legal_name": "Weir", **address}, only=True)
    BillingProfile.objects.create(tenant=tenant, legal_name="Customer", **{**address, "country": "NP"})
    period = open_periods(tenant_id=tenant.pk, now=NOW + timedelta(days=1))[0]
    PeriodHour.objects.create(
        period=period, revision=1, hour=period.starts_at, requests=1, prompt_tokens=10**7, cached_tokens=0,
        completion_tokens=0, cost=10, fingerprint=1,
    )  # fmt: skip
    PeriodUsage.objects.create(
        period=period, revision=1, segment_at=period.starts_at, model="m", service_class="interactive", meter="input",
        price_id="p", unit_nano=1_000, tokens=10**7,
    )  # fmt: skip
    BillingPeriod.objects.filter(pk=period.pk).update(state="sealed", sealed_at=NOW, sealed_by="a")
    return period


@pytest.mark.django_db(transaction=True)
class TestAtOnce:
    def test_make_one_document_of_a_period_and_leave_no_number_out(self, tenants: dict[str, Tenant]) -> None:
        acme = tenants["acme"]
        others = [Tenant.objects.create(name=f"t{number}", plan=acme.plan) for number in range(TENANTS - 1)]
        periods = [sealed(tenant) for tenant in (acme, *others)]
        for tenant in (acme, *others):
            grant_credit(
                key=str(tenant.pk), tenant_id=tenant.pk, currency="USD", amount=Decimal(15), paid=True, reason="x",
                actor="a", at=NOW,
            )  # fmt: skip
        together = Barrier(THREADS, timeout=60)

        def issue(number: int) -> list[str]:
            try:
                together.wait()
                turn = periods[number % TENANTS :] + periods[: number % TENANTS]
                made = [issue_document(period_id=period.pk, actor=f"user:{number}", now=NOW) for period in turn]
                return [each.number for each in made if each is not None]
            finally:
                connections.close_all()

        with ThreadPoolExecutor(THREADS) as threads:
            numbers = [number for mine in threads.map(issue, range(THREADS)) for number in mine]
        assert sorted(numbers) == [f"WEIR-2026-{serial:06d}" for serial in range(1, TENANTS + 1)]
        assert Invoice.objects.count() == TENANTS
        assert CreditMovement.objects.count() == TENANTS
        assert {balance_nano(tenant_id=tenant.pk, currency="USD") for tenant in (acme, *others)} == {5 * 10**9}
