"""Services and selectors on real PostgreSQL and Valkey."""

from dataclasses import replace
from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError
from django.db import DatabaseError, IntegrityError, transaction
from django.db.models import ProtectedError
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries, DjangoCaptureOnCommitCallbacks, Settings
from redis import Redis

from contracts.errors import PermissionDenied
from contracts.tenancy import Limit, Metric, PolicyRef, Scope
from contracts.wire import decode
from safety.models import Policy
from tenants import selectors, services, tasks
from tenants.auth.keys import digest, looks_valid
from tenants.limits import keys
from tenants.limits.revocation import Revocation
from tenants.models import ApiKey, AuditEntry, LimitSetting, OutboxEvent, Plan, Tenant
from tests.functional.tenants.conftest import Customer

pytestmark = pytest.mark.django_db


def context_of(who: Customer):
    return selectors.load_context([digest(who.plaintext, services.pepper())])


class TestKeys:
    def test_are_shown_once_and_kept_as_a_digest(self, acme: Customer) -> None:
        assert looks_valid(acme.plaintext)
        row = ApiKey.objects.filter(id=acme.key.id).values().get()
        assert acme.plaintext not in str(row)
        assert row["digest"] == digest(acme.plaintext, services.pepper())
        assert row["last4"] == acme.plaintext[-4:]
        assert acme.plaintext not in str(list(OutboxEvent.objects.values()))
        assert row["digest"] not in str(list(OutboxEvent.objects.values()))

    def test_never_mix_management_and_inference(self, acme: Customer) -> None:
        for scopes in (["inference", "manage"], [], ["root"]):
            with pytest.raises(ValidationError):
                services.create_key(project=acme.project, name="x", scopes=scopes)

    def test_are_not_made_for_a_deleted_project_or_in_the_past(self, acme: Customer) -> None:
        with pytest.raises(ValidationError):
            services.create_key(project=acme.project, name="x", expires_at=timezone.now() - timedelta(seconds=1))
        services.delete_project(project=acme.project)
        acme.project.refresh_from_db()
        with pytest.raises(ValidationError):
            services.create_key(project=acme.project, name="x")


class TestLoadContext:
    def test_carries_everything_in_two_queries(
        self, acme: Customer, django_assert_num_queries: DjangoAssertNumQueries
    ) -> None:
        services.set_limits(tenant=acme.tenant, caps={"tokens_per_day": 5_000})
        services.set_limits(project=acme.project, caps={"concurrent_requests": 4})
        services.set_limits(api_key=acme.key, caps={"spend_per_month": 0})
        acme.tenant.refresh_from_db()
        with django_assert_num_queries(2):
            context = context_of(acme)
        assert context is not None
        assert {replace(limit, since_ms=0) for limit in context.limits} == {
            Limit(scope=Scope.TENANT, metric=Metric.REQUESTS_PER_MINUTE, cap=60),
            Limit(scope=Scope.TENANT, metric=Metric.TOKENS_PER_DAY, cap=5_000),
            Limit(scope=Scope.PROJECT, metric=Metric.CONCURRENT_REQUESTS, cap=4),
            Limit(scope=Scope.KEY, metric=Metric.SPEND_PER_MONTH, cap=0, alerts=(50, 80, 100)),
        }
        assert (context.tenant_id, context.project_id) == (str(acme.tenant.id), str(acme.project.id))
        assert (context.weight_milli, context.queued_max, context.timezone) == (2_000, 50, "Asia/Kolkata")
        assert (context.key_epoch, context.tenant_epoch) == (1, acme.tenant.epoch)
        assert (context.scopes, context.allowed_models, context.policy) == (frozenset({"inference"}), None, None)

    def test_names_the_published_version_of_the_policy(self, acme: Customer) -> None:
        policy = Policy.objects.create(name="strict", published_version=3)
        services.change_tenant(tenant=acme.tenant, changes={"policy": policy})
        context = context_of(acme)
        assert context is not None
        assert context.policy == PolicyRef(policy_id=str(policy.id), version=3)

    def test_refuses_a_draft_as_policy(self, acme: Customer) -> None:
        draft = Policy.objects.create(name="strict")
        with pytest.raises(ValidationError, match="Publish this policy first") as refused:
            services.change_tenant(tenant=acme.tenant, changes={"policy": draft})
        assert list(refused.value.message_dict) == ["policy"]
        context = context_of(acme)
        assert context is not None
        assert context.policy is None

    def test_keeps_a_policy_that_guards_somebody(self, acme: Customer) -> None:
        policy = Policy.objects.create(name="strict", published_version=3)
        services.change_tenant(tenant=acme.tenant, changes={"policy": policy})
        with pytest.raises(ProtectedError):
            policy.delete()

    def test_never_takes_a_draft_for_no_policy(self, acme: Customer) -> None:
        """However it came there, version 0 names nothing that could be loaded: the guard refuses."""
        draft = Policy.objects.create(name="strict")
        Tenant.objects.filter(id=acme.tenant.id).update(policy=draft)
        context = context_of(acme)
        assert context is not None
        assert context.policy == PolicyRef(policy_id=str(draft.id), version=0)

    def test_knows_no_revoked_expired_or_closed_key(self, acme: Customer) -> None:
        ApiKey.objects.filter(id=acme.key.id).update(expires_at=timezone.now())
        assert context_of(acme) is None
        ApiKey.objects.filter(id=acme.key.id).update(expires_at=None)
        assert context_of(acme) is not None
        services.revoke_key(key=acme.key)
        assert context_of(acme) is None

    def test_refuses_a_suspended_tenant_and_knows_no_closed_one(self, acme: Customer) -> None:
        services.suspend_tenant(tenant=acme.tenant)
        with pytest.raises(PermissionDenied):
            context_of(acme)
        services.resume_tenant(tenant=acme.tenant)
        assert context_of(acme) is not None
        services.close_tenant(tenant=acme.tenant)
        assert context_of(acme) is None
        with pytest.raises(ValidationError):
            services.resume_tenant(tenant=acme.tenant)


class TestLimits:
    def test_a_change_raises_the_epoch_of_all_who_are_concerned(self, acme: Customer, mallory: Customer) -> None:
        before = {t.name: t.epoch for t in Tenant.objects.all()}
        services.set_limits(api_key=acme.key, caps={"requests_per_minute": 5})
        services.set_limits(plan=acme.tenant.plan, caps={"requests_per_minute": 7})
        after = {t.name: t.epoch for t in Tenant.objects.all()}
        assert (after["acme"] - before["acme"], after["mallory"] - before["mallory"]) == (2, 1)

    def test_none_removes_and_unnamed_metrics_stay(self, acme: Customer) -> None:
        services.set_limits(project=acme.project, caps={"requests_per_minute": 5, "tokens_per_day": 6})
        rows = services.set_limits(project=acme.project, caps={"requests_per_minute": None})
        assert [(row.metric, row.cap) for row in rows] == [("tokens_per_day", 6)]

    def test_refuses_what_the_scripts_could_not_count(self, acme: Customer) -> None:
        for caps in ({"requests_per_minute": -1}, {"output_tokens_per_minute": 10**12}, {"wishes_per_day": 1}):
            with pytest.raises(ValidationError):
                services.set_limits(tenant=acme.tenant, caps=caps)

    def test_the_database_refuses_two_caps_for_one_thing_and_a_limit_without_owner(self, acme: Customer) -> None:
        services.set_limits(tenant=acme.tenant, caps={"requests_per_minute": 5})
        for row in (
            {"tenant": acme.tenant, "scope": "tenant", "metric": "requests_per_minute", "cap": 6},
            {"scope": "tenant", "metric": "requests_per_minute", "cap": 6},
            {"tenant": acme.tenant, "scope": "key", "metric": "requests_per_minute", "cap": 6},
            {"tenant": acme.tenant, "scope": "tenant", "metric": "tokens_per_day", "cap": -1},
        ):
            with pytest.raises(IntegrityError), transaction.atomic():
                LimitSetting.objects.create(**row)


class TestEpochs:
    def test_are_pushed_on_commit_and_tell_the_gateways(
        self,
        acme: Customer,
        wired: Redis,
        django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
    ) -> None:
        listener = wired.pubsub(ignore_subscribe_messages=True)
        listener.subscribe(keys.REVOKED_CHANNEL)
        listener.get_message(timeout=5)
        with django_capture_on_commit_callbacks(execute=True):
            services.revoke_key(key=acme.key, reason="leaked")
        stored = wired.hgetall(keys.epoch(str(acme.tenant.id)))
        assert stored[str(acme.key.id).encode()] == b"-2"
        message = listener.get_message(timeout=5)
        assert message is not None
        assert decode(Revocation, message["data"]) == Revocation(
            tenant_id=str(acme.tenant.id), revoked_keys=(str(acme.key.id),), suspended=False
        )
        acme.key.refresh_from_db()
        assert (acme.key.epoch, acme.key.epoch_pushed) == (2, 2)
        listener.close()

    def test_a_push_that_fails_leaves_the_revocation_and_is_repeated(
        self,
        acme: Customer,
        wired: Redis,
        settings: Settings,
        django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
    ) -> None:
        working = settings.ENV
        settings.ENV = working.model_copy(update={"redis_url": type(working.redis_url)("redis://127.0.0.1:1/0")})
        with django_capture_on_commit_callbacks(execute=True):
            services.revoke_key(key=acme.key)
        assert context_of(acme) is None
        acme.key.refresh_from_db()
        assert acme.key.epoch_pushed < acme.key.epoch
        settings.ENV = working
        assert tasks.push_epochs() >= 1
        assert wired.hget(keys.epoch(str(acme.tenant.id)), str(acme.key.id)) == b"-2"
        acme.key.refresh_from_db()
        assert acme.key.epoch_pushed == acme.key.epoch

    def test_are_negative_for_what_is_blocked(self, acme: Customer) -> None:
        services.revoke_key(key=acme.key)
        services.suspend_tenant(tenant=acme.tenant)
        acme.tenant.refresh_from_db()
        signed, tenant_epoch = selectors.epochs(str(acme.tenant.id))
        assert signed == {str(acme.key.id): -2}
        assert tenant_epoch == -acme.tenant.epoch


class TestOutbox:
    def test_commits_with_the_change_or_not_at_all(self, plan: Plan) -> None:
        names = set(OutboxEvent.objects.values_list("name", flat=True))
        assert names == {"plan.created", "limit.changed"}
        with transaction.atomic():
            services.create_tenant(name="ghost", plan=plan)
            transaction.set_rollback(True)
        assert not OutboxEvent.objects.filter(name="tenant.created").exists()

    def test_tells_of_each_kind_of_change(self, acme: Customer, django_user_model: type) -> None:
        member = services.add_member(
            tenant=acme.tenant, user=django_user_model.objects.create_user("ada"), role="admin"
        )
        services.remove_member(member=member)
        services.change_tenant(tenant=acme.tenant, changes={"timezone": "UTC"})
        services.suspend_tenant(tenant=acme.tenant)
        services.resume_tenant(tenant=acme.tenant)
        services.delete_project(project=acme.project)
        services.close_tenant(tenant=acme.tenant)
        mine = OutboxEvent.objects.filter(tenant_id=acme.tenant.id).values_list("name", flat=True)
        assert list(mine) == [
            "tenant.created",
            "project.created",
            "key.created",
            "member.added",
            "member.removed",
            "tenant.changed",
            "tenant.suspended",
            "tenant.resumed",
            "key.revoked",
            "project.deleted",
            "tenant.closed",
        ]


class TestAuditTrail:
    def test_is_append_only_whoever_asks(self, db: None) -> None:
        entry = AuditEntry.objects.create(
            id="0198a000-0000-7000-8000-000000000001",
            name="key.revoked",
            actor="user:ada",
            subject="apikey:1",
            happened_at=timezone.now(),
        )
        for change in (
            lambda: AuditEntry.objects.filter(id=entry.id).update(actor="nobody"),
            lambda: AuditEntry.objects.filter(id=entry.id).delete(),
        ):
            with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
                change()
        assert AuditEntry.objects.get().actor == "user:ada"


class TestTenants:
    def test_refuse_what_limits_could_not_count_in(self, plan: Plan) -> None:
        for changes in (
            {"timezone": "Mars/Olympus"},
            {"timezone": "localtime"},
            {"timezone": "Factory"},
            {"currency": "dollars"},
            {"name": ""},
        ):
            with pytest.raises(ValidationError):
                services.create_tenant(**{"name": "x", "plan": plan, **changes})

    def test_a_closed_tenant_gives_its_name_back_and_stays_for_reports(self, acme: Customer) -> None:
        services.close_tenant(tenant=acme.tenant)
        again = services.create_tenant(name="acme", plan=acme.tenant.plan)
        ids = [str(acme.tenant.id), str(again.id)]
        assert selectors.names_of(ids) == dict.fromkeys(ids, "acme")
