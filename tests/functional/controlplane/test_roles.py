"""The operators' roles: each group opens exactly its pages, and a forged form of a lower role changes nothing."""

import itertools
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.core.management.sql import emit_post_migrate_signal
from django.test import Client
from django.urls import reverse
from redis import Redis

from controlplane.navigation import sidebar
from controlplane.roles import ROLES
from controlplane.seed import seed_demo
from tenants.models import ApiKey, LimitSetting, Plan, Tenant

PAGES = {
    "recent_requests": {"operator", "support", "finance"},
    "usage": {"operator", "support", "finance"},
    "engines": {"operator", "support"},
    "limits": {"operator", "support"},
    "refusals": {"operator", "support"},
    "dead_letters": {"operator"},
}
# model -> (roles that may look, roles that may add); every model of the console stands here.
LOOK_AND_ADD: dict[str, tuple[set[str], set[str]]] = {
    "tenants.tenant": ({"operator", "support", "finance"}, {"operator"}),
    "tenants.plan": ({"operator", "support", "finance"}, {"operator"}),
    "tenants.apikey": ({"operator", "support"}, {"operator"}),
    "tenants.limitsetting": ({"operator", "support"}, {"operator"}),
    "tenants.auditentry": ({"operator", "support"}, set()),
    "webhooks.endpoint": ({"operator", "support"}, {"operator"}),
    "webhooks.delivery": ({"operator", "support"}, set()),
    "safety.policy": ({"operator", "support"}, {"operator"}),
    "safety.policyversion": ({"operator", "support"}, set()),
    "billing.priceversion": ({"operator", "finance"}, {"operator"}),
    "billing.pricelist": ({"operator", "finance"}, {"operator"}),
    "billing.ledgeraccount": ({"operator", "finance"}, set()),
    "billing.ledgertransaction": ({"operator", "finance"}, set()),
    "billing.usageposting": ({"operator", "finance"}, set()),
    "billing.billingperiod": ({"operator", "finance"}, set()),
    "billing.invoice": ({"operator", "finance"}, set()),
    "billing.billingjob": ({"operator", "finance"}, set()),
    "billing.dunningstep": ({"operator", "finance"}, set()),
    "billing.receiptkey": ({"operator", "finance"}, set()),
    **{
        f"billing.{model}": ({"operator", "finance"}, {"operator"})
        for model in (
            "contractterms",
            "taxrate",
            "issuer",
            "billingprofile",
            "creditgrant",
            "creditalert",
            "adjustment",
        )
    },
    "controlplane.servedmodel": ({"operator", "support"}, {"operator"}),
    "controlplane.engineconfig": ({"operator", "support"}, {"operator"}),
    "axes.accesslog": ({"operator"}, set()),
    "axes.accessattempt": ({"operator"}, set()),
    "auth.user": (set(), set()),
    "auth.group": (set(), set()),
}
GRANTS = sorted(ROLES)


def browser(role: str) -> Client:
    """A member of staff with one role."""
    user = User.objects.create_user(f"a-{role}", password="a long pass phrase", is_staff=True)
    if role != "nobody":
        user.groups.add(Group.objects.get(name=role))
    client = Client()
    client.force_login(user)
    return client


class TestMatrix:
    @pytest.mark.parametrize("role", [*GRANTS, "nobody"])
    def test_each_role_opens_exactly_its_pages(self, db: None, wired: Redis, role: str) -> None:
        client = browser(role)
        answers = {name: client.get(reverse(name)).status_code for name in PAGES}
        assert answers == {name: 200 if role in roles else 403 for name, roles in PAGES.items()}

    @pytest.mark.parametrize("role", [*GRANTS, "nobody"])
    def test_each_role_opens_exactly_its_lists(self, db: None, wired: Redis, role: str) -> None:
        client = browser(role)
        wrong = {}
        for model in admin.site._registry:
            label = model._meta.label_lower
            looks, _ = LOOK_AND_ADD[label]
            answer = client.get(reverse(f"admin:{label.replace('.', '_')}_changelist")).status_code
            if answer != (200 if role in looks else 403):
                wrong[label] = answer
        assert wrong == {}

    @pytest.mark.parametrize("role", [*GRANTS, "nobody"])
    def test_each_role_adds_exactly_what_it_may(self, db: None, wired: Redis, role: str) -> None:
        client = browser(role)
        wrong = {}
        for model, site in admin.site._registry.items():
            label = model._meta.label_lower
            _, adds = LOOK_AND_ADD[label]
            answer = client.get(reverse(f"admin:{label.replace('.', '_')}_add")).status_code
            request = type("R", (), {"user": User(is_superuser=True, is_active=True, is_staff=True)})()
            possible = site.has_add_permission(request)  # some models are added to by nobody
            if answer != (200 if role in adds and possible else 403):
                wrong[label] = answer
        assert wrong == {}

    @pytest.mark.parametrize("role", GRANTS)
    def test_each_role_sees_only_links_that_open(self, db: None, wired: Redis, role: str) -> None:
        client = browser(role)
        request: Any = type("R", (), {"user": User.objects.get(username=f"a-{role}")})()
        items = list(itertools.chain.from_iterable(group["items"] for group in sidebar(request)))
        shown = [item["link"] for item in items if item["permission"](request)]
        hidden = [item["link"] for item in items if not item["permission"](request)]
        assert {link: client.get(link).status_code for link in shown} == dict.fromkeys(shown, 200)
        assert {link: client.get(link).status_code for link in hidden} == dict.fromkeys(hidden, 403)
        assert len(hidden) >= 2

    def test_the_table_above_names_every_model_of_the_console(self, db: None) -> None:
        assert {model._meta.label_lower for model in admin.site._registry} == set(LOOK_AND_ADD)


class TestGroups:
    def test_are_made_by_the_migrations_and_brought_back_by_the_next(self, db: None, wired: Redis) -> None:
        before = {
            group.name: set(group.permissions.values_list("codename", flat=True)) for group in Group.objects.all()
        }
        assert set(before) == {"operator", "support", "finance"}
        Group.objects.get(name="support").permissions.clear()
        Group.objects.get(name="finance").permissions.set(Group.objects.get(name="operator").permissions.all())
        seed_demo()  # migrates
        after = {group.name: set(group.permissions.values_list("codename", flat=True)) for group in Group.objects.all()}
        assert after == before

    def test_come_back_after_every_table_was_emptied(self, db: None, wired: Redis) -> None:
        held = set(Group.objects.values_list("name", "permissions__codename"))
        Group.objects.all().delete()
        emit_post_migrate_signal(verbosity=0, interactive=False, db="default")  # as `manage.py flush` ends
        assert set(Group.objects.values_list("name", "permissions__codename")) == held

    def test_no_role_touches_users_roles_second_factors_or_sessions(self, db: None, wired: Redis) -> None:
        held = set(Group.objects.values_list("permissions__content_type__app_label", flat=True))
        assert held.isdisjoint({"auth", "mfa", "account", "sessions", "admin", "contenttypes"})

    def test_support_and_finance_change_nothing(self, db: None, wired: Redis) -> None:
        names = Group.objects.filter(name__in=["support", "finance"]).values_list("permissions__codename", flat=True)
        assert {name.split("_")[0] for name in names} == {"view", "open"}


class TestForgedForms:
    @pytest.fixture
    def acme(self, db: None, wired: Redis) -> Tenant:
        seed_demo()
        return Tenant.objects.get(name="Acme")

    @pytest.mark.parametrize("role", ["support", "finance", "nobody"])
    def test_a_change_of_a_tenant_with_forged_inline_rows_is_refused(self, acme: Tenant, role: str) -> None:
        form = {
            "name": "Acme, mine now", "plan": acme.plan_id, "timezone": "UTC", "evaluation_log": "on", "_save": "Save",
            "limits-TOTAL_FORMS": "1", "limits-INITIAL_FORMS": "0", "limits-0-metric": "spend_per_day",
            "limits-0-cap": "999999", "limits-0-tenant": str(acme.pk),
            "projects-TOTAL_FORMS": "1", "projects-INITIAL_FORMS": "0", "projects-0-name": "forged",
            "projects-0-tenant": str(acme.pk),
        }  # fmt: skip
        before = LimitSetting.objects.count()
        answer = browser(role).post(reverse("admin:tenants_tenant_change", args=[acme.pk]), form)
        acme.refresh_from_db()
        assert answer.status_code == 403
        assert (acme.name, acme.projects.count(), LimitSetting.objects.count()) == ("Acme", 1, before)

    @pytest.mark.parametrize("role", ["support", "finance", "nobody"])
    def test_an_action_is_refused(self, acme: Tenant, role: str) -> None:
        client = browser(role)
        for name, model in (("suspend", "tenant"), ("close", "tenant"), ("revoke", "apikey")):
            rows = [str(pk) for pk in (Tenant if model == "tenant" else ApiKey).objects.values_list("pk", flat=True)]
            client.post(reverse(f"admin:tenants_{model}_changelist"), {"action": name, "_selected_action": rows})
        assert set(Tenant.objects.values_list("state", flat=True)) == {"active"}
        assert not ApiKey.objects.exclude(revoked_at=None).exists()

    @pytest.mark.parametrize("role", ["support", "finance", "operator"])
    def test_nobody_but_a_superuser_makes_users(self, acme: Tenant, role: str) -> None:
        form = {"username": "mallory", "password1": "a long pass phrase", "password2": "a long pass phrase"}
        client = browser(role)
        assert client.post(reverse("admin:auth_user_add"), form).status_code == 403
        me = User.objects.get(username=f"a-{role}")
        assert client.post(f"/admin/auth/user/{me.pk}/change/", {"is_superuser": "on"}).status_code == 403
        assert not User.objects.get(pk=me.pk).is_superuser

    def test_a_plan_is_not_changed_by_who_may_look(self, acme: Tenant) -> None:
        plan = Plan.objects.get()
        answer = browser("support").post(
            reverse("admin:tenants_plan_change", args=[plan.pk]), {"name": "Free for all", "weight_milli": "9000"}
        )
        assert (answer.status_code, Plan.objects.get().name) == (403, plan.name)
