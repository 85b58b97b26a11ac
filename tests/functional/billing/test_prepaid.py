"""What a prepaid tenant may spend over all time, by the ledger: that less its usage is what it has left."""

import random
import uuid
from datetime import timedelta
from decimal import Decimal

import pytest

from billing.invoicing.pay import record_payment, void_period
from billing.ledger.credits import balance_nano, burn_credit, expire_credits, grant_credit
from billing.ledger.entries import UsageLine, post_usage
from billing.models import BillingPeriod
from billing.selectors import lifetime_credit_nano, posted_nano, receivable_nano
from tenants.models import Tenant
from tests.functional.billing.test_invoices import NOW, acme, agreed, issue, november

pytestmark = pytest.mark.django_db
__all__ = ["acme", "november"]

UNIT = 10**9


def grant(tenant_id: uuid.UUID, amount: int | Decimal, *, paid: bool = True, days: int | None = None) -> None:
    grant_credit(
        key=uuid.uuid4().hex, tenant_id=tenant_id, currency="USD", amount=Decimal(amount), paid=paid, reason="x",
        actor="user:ada", at=NOW, expires_at=None if days is None else NOW + timedelta(days=days),
    )  # fmt: skip


def spend(tenant_id: uuid.UUID, amount: int | Decimal) -> None:
    line = UsageLine(
        request_id=uuid.uuid4(), revision=1, tenant_id=tenant_id, currency="USD", amount=Decimal(amount), billed_at=NOW
    )
    post_usage([line], at=NOW)


def cap(tenant_id: uuid.UUID) -> Decimal:
    return Decimal(lifetime_credit_nano(tenant_id=tenant_id, currency="USD")) / UNIT


def left(tenant_id: uuid.UUID) -> int:
    """Prepaid balance less what is owed."""
    owed = receivable_nano(tenant_id=str(tenant_id), currency="USD")
    return balance_nano(tenant_id=tenant_id, currency="USD") - owed


class TestLifetimeCredit:
    def test_is_what_was_bought_and_given_less_what_expired(self, acme: Tenant) -> None:
        assert cap(acme.pk) == 0
        grant(acme.pk, 10)
        grant(acme.pk, Decimal("4.000000001"), paid=False, days=1)
        assert cap(acme.pk) == Decimal("14.000000001")
        assert expire_credits(now=NOW + timedelta(days=1)) == 1
        assert cap(acme.pk) == 10

    def test_is_not_moved_by_usage(self, acme: Tenant) -> None:
        grant(acme.pk, 10)
        spend(acme.pk, 3)
        assert (cap(acme.pk), left(acme.pk)) == (10, 7 * UNIT)
        spend(acme.pk, 0)
        assert cap(acme.pk) == 10

    def test_is_not_moved_by_an_invoice_without_tax_that_credit_pays(self, acme: Tenant) -> None:
        grant(acme.pk, 10)
        spend(acme.pk, 3)
        assert burn_credit(key="i", tenant_id=acme.pk, currency="USD", wanted_nano=3 * UNIT, at=NOW) == 3 * UNIT
        assert (cap(acme.pk), left(acme.pk)) == (10, 7 * UNIT)

    def test_falls_by_the_tax_of_an_invoice_and_rises_by_its_payment(self, november: BillingPeriod) -> None:
        tenant_id = november.tenant_id
        grant(tenant_id, 100)
        made = issue(november)  # 86 of usage as it is posted, less some parts of a nano-unit, and 17.20 of tax
        assert (made.credit_used, made.total) == (100, Decimal("103.20"))
        usage = Decimal(posted_nano(tenant_id=str(tenant_id), currency="USD")) / UNIT
        assert cap(tenant_id) == 100 - (made.total - usage)
        record_payment(invoice_id=made.pk, key="pi", amount=Decimal("3.20"), actor="user:ada", at=NOW)
        assert cap(tenant_id) == 100 - (made.total - usage) + Decimal("3.20") == usage
        agreed(november, "-10")
        assert issue(november).total == -12
        assert cap(tenant_id) == usage + 12

    def test_gives_back_what_a_void_takes_back(self, november: BillingPeriod) -> None:
        issue(november)
        void_period(period_id=november.pk, actor="user:ada", at=NOW, reason="test")
        assert cap(november.tenant_id) * UNIT == posted_nano(tenant_id=str(november.tenant_id), currency="USD")

    def test_is_of_one_tenant_in_one_currency_and_never_less_than_nothing(self, tenants: dict[str, Tenant]) -> None:
        acme, basic = tenants["acme"].pk, tenants["basic"].pk
        grant(basic, 5)
        assert (cap(acme), cap(basic)) == (0, 5)
        assert lifetime_credit_nano(tenant_id=basic, currency="EUR") == 0

    def test_below_nothing_is_nothing_until_it_is_made_up_for(self, november: BillingPeriod) -> None:
        issue(november)
        assert cap(november.tenant_id) == 0
        grant(november.tenant_id, 17)
        assert cap(november.tenant_id) == 0
        grant(november.tenant_id, 1)
        assert 0 < cap(november.tenant_id) <= 1

    @pytest.mark.parametrize("seed", range(5))
    def test_less_usage_is_what_is_left_whatever_was_posted(self, acme: Tenant, seed: int) -> None:
        dice = random.Random(seed)
        grant(acme.pk, 1_000)
        for number in range(30):
            amount = Decimal(dice.randrange(1, 10**10)).scaleb(-9)
            before = cap(acme.pk)
            deed = dice.choice(["spend", "burn", "grant", "expire"])
            if deed == "spend":
                spend(acme.pk, amount)
            elif deed == "burn":
                burn_credit(key=f"b{number}", tenant_id=acme.pk, currency="USD", wanted_nano=5 * UNIT, at=NOW)
            elif deed == "grant":
                grant(acme.pk, amount, paid=dice.random() < 0.5, days=dice.randrange(1, 60))
            else:
                expire_credits(now=NOW + timedelta(days=number))
            if deed in ("spend", "burn"):
                assert cap(acme.pk) == before
            assert cap(acme.pk) * UNIT - posted_nano(tenant_id=str(acme.pk), currency="USD") == left(acme.pk)
