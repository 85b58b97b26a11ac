"""The operator's console as a browser sees it."""

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries

from safety.models import Policy
from tenants import events, services
from tenants.models import ApiKey, AuditEntry, LimitSetting, OutboxEvent, Plan, Project, Tenant
from tests.functional.tenants.conftest import Customer, customer

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator(client: Client) -> Client:
    client.force_login(User.objects.create_superuser("ada", password="x"))
    return client


def management(prefix: str, *, total: int = 0, initial: int = 0) -> dict[str, str]:
    return {f"{prefix}-TOTAL_FORMS": str(total), f"{prefix}-INITIAL_FORMS": str(initial)}


class TestTenantPage:
    def form(self, plan: Plan, **changes: str) -> dict[str, str]:
        return {
            "name": "acme",
            "plan": str(plan.id),
            "timezone": "Europe/Berlin",
            "currency": "EUR",
            "policy": "",
            "queued_max": "",
            **management("limits", total=1),
            "limits-0-metric": "spend_per_month",
            "limits-0-cap": "12.5",
            **management("projects", total=1),
            "projects-0-name": "default",
            **changes,
        }

    def test_makes_a_tenant_with_limits_and_projects_through_services(self, operator: Client, plan: Plan) -> None:
        answer = operator.post(reverse("admin:tenants_tenant_add"), self.form(plan))
        assert answer.status_code == 302, answer.content.decode()[:2_000]
        tenant = Tenant.objects.get(name="acme")
        assert LimitSetting.objects.get(tenant=tenant).cap == 12_500_000_000
        assert Project.objects.get(tenant=tenant).name == "default"
        made = OutboxEvent.objects.filter(tenant_id=tenant.id)
        assert list(made.values_list("name", flat=True)) == ["tenant.created", "limit.changed", "project.created"]
        assert {row.body["actor"] for row in made} == {"user:ada"}

    def test_says_what_cannot_be(self, operator: Client, plan: Plan) -> None:
        answer = operator.post(
            reverse("admin:tenants_tenant_add"), self.form(plan, timezone="Mars/Olympus"), follow=True
        )
        assert "Mars/Olympus is not an IANA time zone." in answer.content.decode()
        wrong = self.form(plan, **{"limits-0-metric": "tokens_per_day", "limits-0-cap": "1.5"})
        answer = operator.post(reverse("admin:tenants_tenant_add"), wrong)
        assert "A whole number, please." in answer.content.decode()
        assert not Tenant.objects.filter(name="acme").exists()

    def test_refuses_a_draft_as_the_tenants_policy(self, operator: Client, plan: Plan) -> None:
        draft = Policy.objects.create(name="strict")
        answer = operator.post(reverse("admin:tenants_tenant_add"), self.form(plan, policy=str(draft.pk)))
        assert "Publish this policy first: a draft guards nobody." in answer.content.decode()
        assert not Tenant.objects.filter(name="acme").exists()

    def test_changes_a_limit_and_removes_one(self, operator: Client, acme: Customer) -> None:
        rows = services.set_limits(tenant=acme.tenant, caps={"spend_per_month": 100 * 10**9, "tokens_per_day": 7})
        by_metric = {row.metric: row for row in rows}
        page = reverse("admin:tenants_tenant_change", args=[acme.tenant.id])
        shown = operator.get(page).content.decode()
        assert 'value="100"' in shown
        assert "spend per month of the tenant: 100" in shown
        form = self.form(
            acme.tenant.plan,
            **management("limits", total=2, initial=2),
            **{
                "limits-0-id": str(by_metric["spend_per_month"].id),
                "limits-0-metric": "spend_per_month",
                "limits-0-cap": "2",
                "limits-1-id": str(by_metric["tokens_per_day"].id),
                "limits-1-metric": "tokens_per_day",
                "limits-1-cap": "7",
                "limits-1-DELETE": "on",
                **management("projects", total=1, initial=1),
                "projects-0-id": str(acme.project.id),
                "projects-0-name": "renamed",
            },
        )
        answer = operator.post(page, form)
        assert answer.status_code == 302, answer.content.decode()
        assert {r.metric: r.cap for r in LimitSetting.objects.filter(tenant=acme.tenant)} == {
            "spend_per_month": 2 * 10**9
        }
        acme.project.refresh_from_db()
        assert acme.project.name == "renamed"

    def test_suspends_and_resumes_by_action(self, operator: Client, acme: Customer) -> None:
        page = reverse("admin:tenants_tenant_changelist")
        for action, state in (
            ("suspend", "suspended"),
            ("resume", "active"),
            ("close", "closed"),
            ("resume", "closed"),
        ):
            operator.post(page, {"action": action, "_selected_action": [str(acme.tenant.id)], "sure": "yes"})
            acme.tenant.refresh_from_db()
            assert acme.tenant.state == state

    def test_asks_before_it_closes_a_tenant_for_good(self, operator: Client, acme: Customer, mallory: Customer) -> None:
        page = reverse("admin:tenants_tenant_changelist")
        asked = operator.post(page, {"action": "close", "_selected_action": [str(acme.tenant.id)]})
        assert asked.status_code == 200
        assert "Nothing brings a closed tenant back" in asked.content.decode()
        assert set(Tenant.objects.values_list("state", flat=True)) == {"active"}
        fields = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]+)"', asked.content.decode())
        operator.post(page, dict(fields))
        assert dict(Tenant.objects.values_list("name", "state")) == {"acme": "closed", "mallory": "active"}


class TestKeyPage:
    def make(self, operator: Client, acme: Customer) -> str:
        page = operator.get(reverse("admin:tenants_apikey_add")).content.decode()
        assert "acme / default" in page
        answer = operator.post(
            reverse("admin:tenants_apikey_add"),
            {
                "project": str(acme.project.id),
                "name": "second",
                "kind": "inference",
                "models_text": "a, b",
                "expires_at_0": "",
                "expires_at_1": "",
            },
        )
        assert answer.status_code == 200
        assert "no-store" in answer["Cache-Control"]
        found = re.search(r'<pre id="plaintext"[^>]*>(weir_\w+)</pre>', answer.content.decode())
        assert found is not None, answer.content.decode()[:3_000]
        return found[1]

    def test_shows_a_new_key_once_and_keeps_only_its_digest(self, operator: Client, acme: Customer) -> None:
        plaintext = self.make(operator, acme)
        key = ApiKey.objects.get(name="second")
        assert key.allowed_models == ["a", "b"]
        assert key.last4 == plaintext[-4:]
        for page in (
            reverse("admin:tenants_apikey_changelist"),
            reverse("admin:tenants_apikey_change", args=[key.id]),
            reverse("admin:index"),
        ):
            text = operator.get(page).content.decode()
            assert plaintext not in text
            assert key.digest not in text
        assert plaintext not in str(operator.cookies)

    def test_revokes_by_action_and_never_edits(self, operator: Client, acme: Customer) -> None:
        page = reverse("admin:tenants_apikey_changelist")
        operator.post(page, {"action": "revoke", "_selected_action": [str(acme.key.id)]})
        acme.key.refresh_from_db()
        assert acme.key.revoked_at is not None
        edit = operator.post(reverse("admin:tenants_apikey_change", args=[acme.key.id]), {"name": "other"})
        assert edit.status_code == 403
        assert operator.post(reverse("admin:tenants_apikey_delete", args=[acme.key.id])).status_code == 403


class TestLimitPage:
    def test_sets_a_cap_for_a_key_in_money(self, operator: Client, acme: Customer) -> None:
        form = {"plan": "", "tenant": "", "project": "", "api_key": str(acme.key.id)}
        answer = operator.post(
            reverse("admin:tenants_limitsetting_add"), {**form, "metric": "spend_per_day", "cap": "0.000000001"}
        )
        assert answer.status_code == 302, answer.content.decode()
        row = LimitSetting.objects.get(api_key=acme.key)
        assert (row.cap, row.scope, row.tenant) == (1, "key", acme.tenant)
        answer = operator.post(reverse("admin:tenants_limitsetting_change", args=[row.id]), {"cap": "3"})
        assert answer.status_code == 302, answer.content.decode()
        row.refresh_from_db()
        assert row.cap == 3 * 10**9
        operator.post(reverse("admin:tenants_limitsetting_delete", args=[row.id]), {"post": "yes"})
        assert not LimitSetting.objects.filter(api_key=acme.key).exists()

    def test_wants_exactly_one_owner(self, operator: Client, acme: Customer) -> None:
        form = {"plan": "", "tenant": str(acme.tenant.id), "project": str(acme.project.id), "api_key": ""}
        answer = operator.post(
            reverse("admin:tenants_limitsetting_add"), {**form, "metric": "tokens_per_day", "cap": "3"}
        )
        assert "Choose one of plan, tenant, project and key." in answer.content.decode()


class TestPlanPage:
    def test_a_change_reaches_its_tenants(self, operator: Client, acme: Customer) -> None:
        plan, epoch = acme.tenant.plan, acme.tenant.epoch
        form = {"name": "basic", "weight_milli": "3000", "queued_max": "50", "max_tokens_default": "512"}
        answer = operator.post(
            reverse("admin:tenants_plan_change", args=[plan.id]),
            {**form, "max_tokens_cap": "", "service_class": "batch", **management("limits")},
        )
        assert answer.status_code == 302, answer.content.decode()
        plan.refresh_from_db()
        acme.tenant.refresh_from_db()
        assert (plan.weight_milli, plan.service_class) == (3_000, "batch")
        assert acme.tenant.epoch == epoch + 1


class TestAuditPage:
    def test_shows_names_and_changes_nothing(self, operator: Client, acme: Customer) -> None:
        for row in OutboxEvent.objects.all():
            events.keep(events.message_of(row))
        text = operator.get(reverse("admin:tenants_auditentry_changelist")).content.decode()
        assert "key.created" in text
        assert "acme" in text
        entry = AuditEntry.objects.first()
        assert entry is not None
        assert operator.get(reverse("admin:tenants_auditentry_change", args=[entry.id])).status_code == 200
        assert operator.post(reverse("admin:tenants_auditentry_delete", args=[entry.id])).status_code == 403
        assert operator.get(reverse("admin:tenants_auditentry_add")).status_code == 403


class TestQueries:
    @pytest.mark.parametrize("name", ["tenant", "apikey", "plan", "limitsetting", "auditentry"])
    def test_a_list_takes_as_many_whatever_its_length(
        self, operator: Client, acme: Customer, name: str, django_assert_num_queries: DjangoAssertNumQueries
    ) -> None:
        from django.db import connection
        from django.test.utils import CaptureQueriesContext

        def keep_all() -> None:
            for row in OutboxEvent.objects.all():
                events.keep(events.message_of(row))

        page = reverse(f"admin:tenants_{name}_changelist")
        keep_all()
        operator.get(page)
        with CaptureQueriesContext(connection) as few:
            operator.get(page)
        for number in range(5):
            other = customer(services.create_plan(name=f"plan {number}"), f"tenant {number}")
            services.set_limits(api_key=other.key, caps={"tokens_per_day": 5})
            services.set_limits(project=other.project, caps={"tokens_per_day": 5})
        keep_all()
        with CaptureQueriesContext(connection) as many:
            operator.get(page)
        assert len(many) == len(few)
