"""Prepaid credit in real PostgreSQL: granted once, burned in order, never more than there is, expired, told of."""

import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import StringIO
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, transaction
from django.db.models import Sum
from django.test import Client
from django.urls import reverse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytest_django import Settings

from billing.ledger.credits import CreditRefused, balance_nano, burn_credit, expire_credits, fire_alerts, grant_credit
from billing.ledger.journal import LedgerConflict, post_once, transfer
from billing.models import AccountKind, CreditAlert, CreditGrant, CreditMovement, LedgerEntry, LedgerTransaction
from billing.tasks import expire_credits as expire_task
from billing.tasks import tell_of_credit
from tenants.models import OutboxEvent, Tenant

pytestmark = pytest.mark.django_db

AT = datetime(2027, 1, 1, tzinfo=UTC)
UNIT = 10**9


def grant(
    tenant: Tenant, amount: str, *, key: str | None = None, paid: bool = False, days: int | None = None
) -> CreditGrant:
    made, _ = grant_credit(
        key=key or uuid.uuid4().hex, tenant_id=tenant.pk, currency="USD", amount=Decimal(amount), paid=paid,
        reason="test", actor="user:ada", at=AT, expires_at=None if days is None else AT + timedelta(days=days),
    )  # fmt: skip
    return made


def burn(tenant: Tenant, nano: int, *, key: str = "invoice-1", at: datetime = AT) -> int:
    return burn_credit(key=key, tenant_id=tenant.pk, currency="USD", wanted_nano=nano, at=at)


def left(tenant: Tenant) -> int:
    return balance_nano(tenant_id=tenant.pk, currency="USD")


def accounts() -> dict[str, Decimal]:
    rows = LedgerEntry.objects.values_list("account__kind").annotate(total=Sum("amount"))
    return {kind: total for kind, total in rows if total}


def balance_is_checked() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("SET CONSTRAINTS ALL DEFERRED")


class TestGrant:
    def test_is_posted_once_by_its_key(self, tenants: dict[str, Tenant]) -> None:
        first, again = (grant(tenants["acme"], "25", key="pay_1", paid=True) for _ in range(2))
        assert first == again
        assert left(tenants["acme"]) == 25 * UNIT
        assert accounts() == {"cash": Decimal(25), "prepaid_credit": Decimal(-25)}

    def test_refuses_its_key_for_another_amount(self, tenants: dict[str, Tenant]) -> None:
        grant(tenants["acme"], "25", key="pay_1")
        with pytest.raises(LedgerConflict):
            grant(tenants["acme"], "26", key="pay_1")
        assert left(tenants["acme"]) == 25 * UNIT

    def test_is_more_than_nothing_and_later_than_now(self, tenants: dict[str, Tenant]) -> None:
        for amount, days in (("0", 1), ("-1", 1), ("1", 0)):
            with pytest.raises(CreditRefused):
                grant(tenants["acme"], amount, days=days)


class TestBurn:
    def test_pays_once_in_the_order_of_expiry(self, tenants: dict[str, Tenant]) -> None:
        acme = tenants["acme"]
        bought = grant(acme, "10", paid=True)
        gift = grant(acme, "4", days=30)
        assert burn(acme, 6 * UNIT) == 6 * UNIT
        assert burn(acme, 6 * UNIT) == 6 * UNIT
        assert left(acme) == 8 * UNIT
        moved = dict(CreditMovement.objects.values_list("grant_id", "amount"))
        assert moved == {gift.pk: Decimal(4), bought.pk: Decimal(2)}
        assert accounts()["receivable"] == -6

    def test_gives_what_there_is_and_nothing_that_has_expired(self, tenants: dict[str, Tenant]) -> None:
        acme = tenants["acme"]
        grant(acme, "4", days=30)
        assert burn(acme, 6 * UNIT, at=AT + timedelta(days=30)) == 0
        grant(acme, "5")
        assert burn(acme, 6 * UNIT, key="invoice-2", at=AT + timedelta(days=30)) == 5 * UNIT
        assert burn(tenants["basic"], UNIT, key="other") == 0

    @settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    @given(st.lists(st.tuples(st.booleans(), st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=10))
    def test_conserves_credit_for_any_order(
        self, tenants: dict[str, Tenant], steps: list[tuple[bool, int, int]]
    ) -> None:
        with transaction.atomic():
            acme = tenants["acme"]
            expected, start = left(acme), uuid.uuid4().hex
            for number, (gives, amount, key) in enumerate(steps):
                if gives:
                    grant(acme, str(amount), key=f"{start}-{number}")
                    expected += amount * UNIT
                elif not LedgerTransaction.objects.filter(idempotency_key=f"burn:{start}-b{key}").exists():
                    paid = burn(acme, amount * UNIT, key=f"{start}-b{key}")
                    assert paid == min(amount * UNIT, expected)
                    expected -= paid
                else:
                    burn(acme, amount * UNIT, key=f"{start}-b{key}")
            balance_is_checked()
            assert left(acme) == expected
            used = CreditMovement.objects.aggregate(total=Sum("amount"))["total"] or 0
            granted = CreditGrant.objects.aggregate(total=Sum("amount"))["total"] or 0
            assert (granted - used) * UNIT == expected
            transaction.set_rollback(True)


class TestExpire:
    def test_makes_breakage_of_money_and_takes_gifts_back_once(self, tenants: dict[str, Tenant]) -> None:
        acme = tenants["acme"]
        grant(acme, "10", paid=True, days=1)
        grant(acme, "4", days=1)
        grant(acme, "3")
        burn(acme, 5 * UNIT)
        after = AT + timedelta(days=1)
        assert expire_credits(now=after - timedelta(seconds=1)) == 0
        assert expire_credits(now=after, limit=1) == 1
        assert expire_credits(now=after) == 0  # the gift was burned whole
        assert left(acme) == 3 * UNIT
        assert accounts() == {
            "cash": 10, "promotion": 7, "prepaid_credit": -3, "receivable": -5, "breakage": -9,
        }  # fmt: skip
        assert expire_task() == 0


class TestAlerts:
    def test_tell_once_until_there_is_credit_again(self, tenants: dict[str, Tenant]) -> None:
        acme = tenants["acme"]
        alert = CreditAlert.objects.create(tenant=acme, currency="USD", below=Decimal(5))
        told: list[tuple[CreditAlert, int]] = []

        def fire() -> list[CreditAlert]:
            return fire_alerts(now=AT, tell=lambda each, left: told.append((each, left)))

        grant(acme, "5")
        assert fire() == []
        burn(acme, 1)
        assert fire() == [alert]
        assert fire() == []
        assert told == [(alert, 5 * UNIT - 1)]
        grant(acme, "1")
        assert fire() == []
        burn(acme, 2 * UNIT, key="invoice-2")
        assert tell_of_credit() == 1
        event = OutboxEvent.objects.get(name="credit.low")
        assert (event.tenant_id, event.body["after"]) == (
            acme.pk, {"currency": "USD", "below": "5", "left": "3.999999999"},
        )  # fmt: skip


class TestDatabase:
    def test_refuses_more_than_a_grant_has_and_any_change(self, tenants: dict[str, Tenant]) -> None:
        made = grant(tenants["acme"], "1")
        posted, _ = post_once(key="by hand", currency="USD", description="x", at=AT, sides=[])
        with pytest.raises(IntegrityError, match="left"), transaction.atomic():
            CreditMovement.objects.create(
                grant=made, kind="burn", amount=Decimal("1.000000001"), moved_at=AT, transaction=posted
            )
        CreditMovement.objects.create(grant=made, kind="burn", amount=1, moved_at=AT, transaction=posted)
        for model in (CreditGrant, CreditMovement):
            with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
                model.objects.update(amount=5)  # type: ignore[attr-defined]


class TestPostOnce:
    def test_needs_sides_that_sum_to_zero(self, tenants: dict[str, Tenant]) -> None:
        sides = transfer(debit=(None, AccountKind.CASH), credit=(tenants["acme"].pk, AccountKind.RECEIVABLE), nano=5)
        with pytest.raises(ValueError, match="zero"):
            post_once(key="k", currency="USD", description="x", at=AT, sides=sides[:1])
        assert post_once(key="k", currency="USD", description="x", at=AT, sides=sides)[1] is True
        assert post_once(key="k", currency="USD", description="x", at=AT, sides=sides)[1] is False
        with pytest.raises(LedgerConflict):
            post_once(key="k", currency="USD", description="x", at=AT, sides=[])


class TestCommand:
    def run(self, *words: str) -> str:
        out = StringIO()
        call_command("credit", *words, stdout=out)
        return out.getvalue()

    def test_grants_by_key_and_shows_what_is_left(self, tenants: dict[str, Tenant]) -> None:
        words = ("top-up", "--tenant", "acme", "--amount", "12.5", "--key", "pay_1", "--reason", "wire")
        assert "granted\ncredit left: 12.5 USD" in self.run(*words)
        assert "nothing done\ncredit left: 12.5 USD" in self.run(*words)
        said = "credit left: 12.5 USD\nnot prepaid: credit pays invoices and limits nothing\n"
        assert self.run("balance", "--tenant", "acme") == said
        assert self.run("expire") == "expired: 0\n"

    @pytest.mark.parametrize(
        ("amount", "expires"),
        [
            ("x", None),
            ("0", None),
            ("0.0000000001", None),
            ("1", "2027-01-01"),
            ("1", "x"),
            ("1", "2027-99-01T00:00:00Z"),
            ("1", ""),
        ],
    )
    def test_names_what_is_wrong(self, tenants: dict[str, Tenant], amount: str, expires: str | None) -> None:
        words = ["grant", "--tenant", "acme", "--amount", amount, "--key", "k", "--reason", "r"]
        with pytest.raises(CommandError):
            self.run(*words, *(["--expires", expires] if expires is not None else []))
        with pytest.raises(CommandError, match="nobody"):
            self.run("balance", "--tenant", "nobody")
        assert not CreditGrant.objects.exists()


class TestAdmin:
    def test_grants_by_a_form_and_changes_nothing_afterwards(
        self, tenants: dict[str, Tenant], settings: Settings, tmp_path: Path
    ) -> None:
        settings.STATIC_ROOT = tmp_path
        ada = Client()
        ada.force_login(User.objects.create_superuser("ada", password="only-a-test"))
        address = reverse("admin:billing_creditgrant_add")
        form = {
            "tenant": str(tenants["acme"].pk), "currency": "USD", "amount": "20", "reason": "welcome",
            "expires_at_0": "", "expires_at_1": "", "movements-TOTAL_FORMS": "0", "movements-INITIAL_FORMS": "0",
        }  # fmt: skip
        assert b"more than nothing" in ada.post(address, {**form, "amount": "-1"}).content
        late = {**form, "expires_at_0": "2020-01-01", "expires_at_1": "00:00:00"}
        assert b"expires later" in ada.post(address, late).content
        assert ada.post(address, form).status_code == 302
        made = CreditGrant.objects.get()
        assert (made.amount, made.created_by, left(tenants["acme"])) == (20, "user:ada", 20 * UNIT)
        page = ada.get(reverse("admin:billing_creditgrant_change", args=[made.pk]))
        assert b'name="_save"' not in page.content
        for name in ("creditgrant", "creditalert"):
            assert ada.get(reverse(f"admin:billing_{name}_changelist")).status_code == 200
