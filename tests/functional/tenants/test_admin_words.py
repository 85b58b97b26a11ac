"""What the pages of customers say to a person: units, names, and what an event changed."""

import html
import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from tenants import events, services
from tenants.admin.changes import Change, read_changes
from tenants.models import AuditEntry, LimitSetting, OutboxEvent, Tenant
from tests.functional.tenants.conftest import Customer

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator(client: Client) -> Client:
    client.force_login(User.objects.create_superuser("ada", password="x"))
    return client


def words(page: str) -> str:
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<(script|style).*?</\1>|<[^>]+>", " ", page, flags=re.S)))


def keep_all() -> None:
    for row in OutboxEvent.objects.all():
        events.keep(events.message_of(row))


class TestUnits:
    @pytest.fixture(autouse=True)
    def euros(self, acme: Customer) -> None:
        Tenant.objects.filter(id=acme.tenant.id).update(currency="EUR")
        acme.tenant.refresh_from_db()
        services.set_limits(tenant=acme.tenant, caps={"spend_per_month": 12_500_000_000, "tokens_per_day": 1_000})
        services.set_limits(plan=acme.tenant.plan, caps={"spend_per_day": 2 * 10**9, "requests_per_minute": 60})

    def test_of_each_cap_are_in_the_list(self, operator: Client) -> None:
        told = words(operator.get(reverse("admin:tenants_limitsetting_changelist")).content.decode())
        for cap in ("12.5 EUR", "2 in each tenant's currency", "1,000 tokens", "60 requests"):
            assert cap in told

    def test_of_a_cap_are_on_the_tenants_page_too(self, operator: Client, acme: Customer) -> None:
        page = words(operator.get(reverse("admin:tenants_tenant_change", args=[acme.tenant.id])).content.decode())
        assert "spend per month of the tenant: 12.5 EUR" in page
        row = LimitSetting.objects.get(tenant=acme.tenant, metric="spend_per_month")
        page = words(operator.get(reverse("admin:tenants_limitsetting_change", args=[row.id])).content.decode())
        assert "money in EUR (12.50)" in page

    def test_of_a_plan_are_in_words(self, operator: Client, acme: Customer) -> None:
        told = words(operator.get(reverse("admin:tenants_plan_changelist")).content.decode())
        assert "basic 2 Interactive 50 requests 512 tokens the model's own end what everybody pays 1" in told
        page = words(operator.get(reverse("admin:tenants_plan_change", args=[acme.tenant.plan_id])).content.decode())
        assert "Weight, in thousandths" in page
        for raw in ("Weight milli", "Queued max", "Max tokens cap"):
            assert raw not in told + page

    def test_tell_projects_and_keys_of_two_tenants_apart(self, operator: Client, mallory: Customer) -> None:
        page = operator.get(reverse("admin:tenants_limitsetting_add")).content.decode()
        for told in ("acme / default", "mallory / default", f"mallory / first (…{mallory.key.last4})"):
            assert told in page


class TestKeyPage:
    def test_says_what_no_value_means(self, operator: Client, acme: Customer) -> None:
        page = words(operator.get(reverse("admin:tenants_apikey_change", args=[acme.key.id])).content.decode())
        for told in ("every model", "anywhere", "never", "active"):
            assert told in page
        assert "['inference']" not in page


class TestAuditTrail:
    def page(self, operator: Client, name: str) -> str:
        keep_all()
        entry = AuditEntry.objects.filter(name=name).first()
        assert entry is not None
        return operator.get(reverse("admin:tenants_auditentry_change", args=[entry.id])).content.decode()

    def test_shows_field_by_field_what_changed(self, operator: Client, acme: Customer) -> None:
        other = services.create_plan(name="gold")
        services.change_tenant(tenant=acme.tenant, changes={"plan": other, "timezone": "Europe/Berlin"})
        page = self.page(operator, "tenant.changed")
        told = words(page)
        assert "Plan basic gold" in told
        assert "Timezone Asia/Kolkata Europe/Berlin" in told
        assert "As before: Name, State, Policy" in told
        assert str(other.id) not in page
        assert "{" not in told.partition("What changed")[2].partition("As before")[0]

    def test_says_nothing_where_one_side_is_empty(self, operator: Client, acme: Customer) -> None:
        told = words(self.page(operator, "key.created"))
        assert "Name nothing first" in told
        assert "Project nothing default" in told
        assert "Scopes nothing inference" in told
        assert "Allowed models nothing every model" in told

    def test_names_what_an_event_is_about_and_leads_there(self, operator: Client, acme: Customer) -> None:
        page = self.page(operator, "key.created")
        assert f"API key first (…{acme.key.last4})" in words(page)
        assert reverse("admin:tenants_apikey_change", args=[acme.key.id]) in page
        listed = words(operator.get(reverse("admin:tenants_auditentry_changelist")).content.decode())
        for about in (f"API key first (…{acme.key.last4})", "Tenant acme", "Plan basic", "Project default"):
            assert about in listed

    def test_keeps_the_id_of_what_is_no_longer_known(self, operator: Client, acme: Customer) -> None:
        AuditEntry.objects.create(
            id="0198a000-0000-7000-8000-0000000000ab", name="odd.event", actor="system", subject="thing:1",
            happened_at=acme.tenant.created_at,
        )  # fmt: skip
        told = words(operator.get(reverse("admin:tenants_auditentry_changelist")).content.decode())
        assert "thing 1" in told
        page = operator.get(reverse("admin:tenants_auditentry_change", args=["0198a000-0000-7000-8000-0000000000ab"]))
        assert "Nothing is recorded." in words(page.content.decode())


class TestChanges:
    @pytest.mark.parametrize(
        ("before", "after", "told"),
        [
            ({"spend_per_month": None}, {"spend_per_month": 12_500_000_000}, ("no limit", "12.5 EUR")),
            ({"tokens_per_day": 1_000}, {"tokens_per_day": 0}, ("1,000", "0: blocked")),
            ({"requests_per_minute of m": 5}, {"requests_per_minute of m": None}, ("5", "no limit")),
            ({"expires_at": None}, {"expires_at": "2027-01-15T12:00:00+02:00"}, ("never", "2027-01-15 10:00:00 UTC")),
            ({"evaluation_log": False}, {"evaluation_log": True}, ("no", "yes")),
            ({"events": []}, {"events": ["key.*", "tenant.*"]}, ("nothing", "key.*, tenant.*")),
            ({"weight_milli": 1_000}, {"weight_milli": 2_500}, ("1", "2.5")),
            ({"state": "active"}, {}, ("active", "nothing")),
            ({"odd": {"a_b": 1}}, {"odd": "x"}, ("A b: 1", "x")),
            ({"plan": "no id"}, {"plan": "0198a000-0000-7000-8000-0000000000ff"},
             ("no id", "0198a000-0000-7000-8000-0000000000ff")),
        ],
    )  # fmt: skip
    def test_are_in_words(self, before: Any, after: Any, told: tuple[str, str]) -> None:
        found = read_changes(before, after, currency="EUR")
        assert [(change.before, change.after) for change in found.changed] == [told]

    def test_tell_a_side_that_is_silent_from_one_that_is_empty(self) -> None:
        found = read_changes({"name": "a"}, {"reason": "lost"}, currency=None)
        assert found.changed == (Change("Name", "a", "-"), Change("Reason", "-", "lost"))
