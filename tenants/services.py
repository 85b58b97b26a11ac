"""Every change to a tenant, project, member, key or limit. Called by the admin, the management API and the seed.

Invariants: a change and its event commit together; a change that a cached context must not outlive raises an epoch in
the same transaction and pushes it on commit; the plain text of a key is returned once and kept nowhere.
Every function raises django.core.exceptions.ValidationError for input it refuses.
"""

import uuid
import zoneinfo
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import F, Model
from django.utils import timezone as clock

from contracts.tenancy import Metric, Scope
from stores.secrets import KEY_PEPPER, derive
from tenants import epochs, selectors
from tenants.actors import SYSTEM, Actor
from tenants.auth.keys import PREFIX, digest, hint_of, mint
from tenants.events import record
from tenants.limits.policy import CAP_MAX, RATE_CAP_MAX, RULES, Kind
from tenants.models import ApiKey, KeyScope, LimitSetting, Member, Plan, Project, Role, Tenant, TenantState


def pepper() -> bytes:
    """The secret under which keys are digested, derived from the root secret."""
    return derive(settings.ENV.secret.get_secret_value(), KEY_PEPPER)


@transaction.atomic
def create_plan(
    *,
    name: str,
    weight_milli: int = 1000,
    queued_max: int = 1000,
    max_tokens_default: int = 512,
    max_tokens_cap: int | None = None,
    actor: Actor = SYSTEM,
) -> Plan:
    """A plan; its limits are set by `set_limits(plan=…)`."""
    plan = Plan(
        name=name,
        weight_milli=weight_milli,
        queued_max=queued_max,
        max_tokens_default=max_tokens_default,
        max_tokens_cap=max_tokens_cap,
    )
    plan.full_clean()
    plan.save()
    record("plan.created", tenant_id=None, subject=f"plan:{plan.id}", actor=actor, after={"name": name})
    return plan


_PLAN_FIELDS = frozenset({"name", "weight_milli", "queued_max", "max_tokens_default", "max_tokens_cap"})


@transaction.atomic
def change_plan(*, plan: Plan, changes: Mapping[str, Any], actor: Actor = SYSTEM) -> Plan:
    """Change fields of a plan; its tenants feel it at once."""
    locked = Plan.objects.select_for_update().get(id=plan.id)
    before = _apply(locked, changes, _PLAN_FIELDS)
    for tenant in Tenant.objects.filter(plan=locked):
        _raise_tenant_epoch(tenant)
    record("plan.changed", tenant_id=None, subject=_subject(locked), actor=actor, before=before, after=dict(changes))
    return locked


@transaction.atomic
def create_tenant(
    *,
    name: str,
    plan: Plan,
    timezone: str = "UTC",
    currency: str = "USD",
    evaluation_log: bool = False,
    cut_to_affordable: bool = False,
    queued_max: int | None = None,
    actor: Actor = SYSTEM,
) -> Tenant:
    """A tenant with nothing in it yet."""
    check_timezone(timezone)
    tenant = Tenant(
        name=name,
        plan=plan,
        timezone=timezone,
        currency=currency,
        evaluation_log=evaluation_log,
        cut_to_affordable=cut_to_affordable,
        queued_max=queued_max,
    )
    tenant.full_clean()
    tenant.save()
    record("tenant.created", tenant_id=tenant.id, subject=_subject(tenant), actor=actor, after=_facts(tenant))
    _push_on_commit(tenant.id)
    return tenant


_CHANGEABLE = frozenset({"name", "plan", "timezone", "policy", "evaluation_log", "cut_to_affordable", "queued_max"})


@transaction.atomic
def change_tenant(*, tenant: Tenant, changes: Mapping[str, Any], actor: Actor = SYSTEM) -> Tenant:
    """Change settings of a tenant: name, plan, timezone, policy, evaluation_log, cut_to_affordable, queued_max."""
    locked = Tenant.objects.select_for_update().get(id=tenant.id)
    before = _facts(locked)
    check_timezone(changes.get("timezone", locked.timezone))
    _apply(locked, changes, _CHANGEABLE)
    _raise_tenant_epoch(locked)
    after = _facts(locked)
    record("tenant.changed", tenant_id=locked.id, subject=_subject(locked), actor=actor, before=before, after=after)
    return locked


def suspend_tenant(*, tenant: Tenant, reason: str = "", actor: Actor = SYSTEM) -> Tenant:
    """Refuse every request of a tenant from now on and cut its running streams."""
    return _move(tenant, TenantState.SUSPENDED, "tenant.suspended", reason, actor)


def resume_tenant(*, tenant: Tenant, reason: str = "", actor: Actor = SYSTEM) -> Tenant:
    """Let a suspended tenant in again, as it was."""
    return _move(tenant, TenantState.ACTIVE, "tenant.resumed", reason, actor)


def close_tenant(*, tenant: Tenant, reason: str = "", actor: Actor = SYSTEM) -> Tenant:
    """End a tenant for good. Its rows stay for old reports; its name becomes free."""
    return _move(tenant, TenantState.CLOSED, "tenant.closed", reason, actor)


@transaction.atomic
def _move(tenant: Tenant, state: TenantState, event: str, reason: str, actor: Actor) -> Tenant:
    locked = Tenant.objects.select_for_update().get(id=tenant.id)
    if locked.state == TenantState.CLOSED and state != TenantState.CLOSED:
        raise ValidationError("A closed tenant does not come back.")
    if locked.state == state:
        return locked
    before = {"state": locked.state}
    locked.state = state
    locked.closed_at = clock.now() if state == TenantState.CLOSED else None
    locked.save(update_fields=["state", "closed_at", "updated_at"])
    _raise_tenant_epoch(locked)
    record(
        event,
        tenant_id=locked.id,
        subject=_subject(locked),
        actor=actor,
        before=before,
        after={"state": str(state), "reason": reason},
    )
    return locked


@transaction.atomic
def create_project(*, tenant: Tenant, name: str, actor: Actor = SYSTEM) -> Project:
    """A project of a tenant."""
    _must_be_open(tenant)
    project = Project(tenant=tenant, name=name)
    project.full_clean()
    project.save()
    record("project.created", tenant_id=tenant.id, subject=_subject(project), actor=actor, after={"name": name})
    return project


@transaction.atomic
def rename_project(*, project: Project, name: str, actor: Actor = SYSTEM) -> Project:
    """Give a project another name."""
    locked = Project.objects.select_for_update().get(id=project.id)
    before = _apply(locked, {"name": name}, frozenset({"name"}))
    record(
        "project.renamed",
        tenant_id=locked.tenant_id,
        subject=_subject(locked),
        actor=actor,
        before=before,
        after={"name": name},
    )
    return locked


@transaction.atomic
def delete_project(*, project: Project, actor: Actor = SYSTEM) -> Project:
    """Revoke the keys of a project and take it off the lists; its name stays in old reports."""
    locked = Project.objects.select_for_update().get(id=project.id)
    if locked.deleted_at is not None:
        return locked
    for key in locked.api_keys.filter(revoked_at=None):
        revoke_key(key=key, reason="project deleted", actor=actor)
    locked.deleted_at = clock.now()
    locked.save(update_fields=["deleted_at", "updated_at"])
    before = {"name": locked.name}
    record("project.deleted", tenant_id=locked.tenant_id, subject=_subject(locked), actor=actor, before=before)
    return locked


@transaction.atomic
def add_member(*, tenant: Tenant, user: AbstractBaseUser, role: str = Role.DEVELOPER, actor: Actor = SYSTEM) -> Member:
    """Give a person a role in a tenant."""
    _must_be_open(tenant)
    member = Member(tenant=tenant, user_id=user.pk, role=role)
    member.full_clean()
    member.save()
    record(
        "member.added",
        tenant_id=tenant.id,
        subject=_subject(member),
        actor=actor,
        after={"user": user.get_username(), "role": role},
    )
    return member


@transaction.atomic
def remove_member(*, member: Member, actor: Actor = SYSTEM) -> None:
    """Take a person's role away."""
    locked = Member.objects.select_for_update().get(id=member.id)
    if locked.deleted_at is not None:
        return
    locked.deleted_at = clock.now()
    locked.save(update_fields=["deleted_at", "updated_at"])
    record("member.removed", tenant_id=locked.tenant_id, subject=_subject(locked), actor=actor)


@transaction.atomic
def create_key(
    *,
    project: Project,
    name: str,
    scopes: Sequence[str] = (KeyScope.INFERENCE,),
    allowed_models: Sequence[str] | None = None,
    expires_at: datetime | None = None,
    actor: Actor = SYSTEM,
) -> tuple[ApiKey, str]:
    """A key and its plain text, which nobody can read again."""
    tenant = project.tenant
    _must_be_open(tenant)
    if project.deleted_at is not None:
        raise ValidationError({"project": "This project was deleted."})
    if len(set(scopes)) != 1 or scopes[0] not in KeyScope.values:
        raise ValidationError({"scopes": "One of: inference, manage. A management key is apart from inference keys."})
    if expires_at is not None and expires_at <= clock.now():
        raise ValidationError({"expires_at": "This is in the past."})
    plaintext = mint()
    key = ApiKey(
        tenant=tenant,
        project=project,
        name=name,
        prefix=PREFIX,
        last4=hint_of(plaintext),
        digest=digest(plaintext, pepper()),
        scopes=list(scopes),
        allowed_models=list(allowed_models) if allowed_models is not None else None,
        expires_at=expires_at,
    )
    key.full_clean()
    key.save()
    record("key.created", tenant_id=tenant.id, subject=_subject(key), actor=actor, after=_facts(key))
    _push_on_commit(tenant.id, [key.id])
    return key, plaintext


@transaction.atomic
def revoke_key(*, key: ApiKey, reason: str = "", actor: Actor = SYSTEM) -> ApiKey:
    """Refuse a key from now on and cut its running streams. Final; repeated it does nothing."""
    locked = ApiKey.objects.select_for_update().get(id=key.id)
    if locked.revoked_at is not None:
        return locked
    now = clock.now()
    ApiKey.objects.filter(id=locked.id).update(
        revoked_at=now, epoch=F("epoch") + 1, epoch_changed_at=now, updated_at=now
    )
    locked.refresh_from_db()
    record(
        "key.revoked",
        tenant_id=locked.tenant_id,
        subject=_subject(locked),
        actor=actor,
        before=_facts(locked),
        after={"reason": reason},
    )
    _push_on_commit(locked.tenant_id, [locked.id], revoked=True)
    return locked


@transaction.atomic
def set_limits(
    *,
    tenant: Tenant | None = None,
    plan: Plan | None = None,
    project: Project | None = None,
    api_key: ApiKey | None = None,
    caps: Mapping[str, int | None],
    actor: Actor = SYSTEM,
) -> list[LimitSetting]:
    """Set caps of one owner by metric; None removes a limit, 0 blocks. Metrics not named stay as they are.

    The owner is the most special one given: key, project, tenant, or a plan alone.
    """
    owner, scope = _owner(tenant, plan, project, api_key)
    for metric, cap in caps.items():
        check_cap(metric, cap)
    current = {row.metric: row for row in LimitSetting.objects.select_for_update().filter(**owner)}
    before = {metric: row.cap for metric, row in current.items() if metric in caps}
    for metric, cap in caps.items():
        if cap is None:
            LimitSetting.objects.filter(**owner, metric=metric).delete()
        else:
            LimitSetting.objects.update_or_create(**owner, metric=metric, defaults={"cap": cap, "scope": scope})
    changed: Iterable[Tenant] = [owner["tenant"]] if owner["tenant"] else Tenant.objects.filter(plan=owner["plan"])
    for each in changed:
        _raise_tenant_epoch(each)
    target: Model | None = api_key or project or tenant or plan
    assert target is not None
    record(
        "limit.changed",
        tenant_id=owner["tenant"].id if owner["tenant"] else None,
        subject=_subject(target),
        actor=actor,
        before=before,
        after=dict(caps),
    )
    return list(LimitSetting.objects.filter(**owner))


def check_timezone(name: str) -> None:
    """Refuse a zone that the limits could not count in."""
    if name not in zoneinfo.available_timezones():
        raise ValidationError({"timezone": f"{name} is not an IANA time zone."})


def check_cap(metric: str, cap: int | None) -> None:
    """Refuse an unknown metric, and a cap that the scripts could not count exactly."""
    if metric not in set(Metric):
        raise ValidationError({"metric": f"{metric} is not a metric."})
    rate = RULES[Metric(metric)].kind in (Kind.RATE, Kind.OUTPUT)
    most = RATE_CAP_MAX if rate else CAP_MAX
    if cap is not None and not 0 <= cap <= most:
        raise ValidationError({"cap": f"The cap of {metric} must lie between 0 and {most}."})


def push_now(*, tenant_id: uuid.UUID, key_ids: Sequence[uuid.UUID] = (), revoked: bool = False) -> bool:
    """Bring the epochs of a tenant (and of the keys named) to Redis. False: not reached, the beat repeats it."""
    keys, tenant_epoch = selectors.epochs(str(tenant_id), key_ids=key_ids)
    sent = epochs.push(
        tenant_id=str(tenant_id),
        tenant_epoch=tenant_epoch,
        epochs=keys,
        revoked=[str(key_id) for key_id in key_ids] if revoked else (),
    )
    if sent:
        Tenant.objects.filter(id=tenant_id, epoch=abs(tenant_epoch)).update(epoch_pushed=abs(tenant_epoch))
        for key_id, epoch in keys.items():
            ApiKey.objects.filter(id=key_id, epoch=abs(epoch)).update(epoch_pushed=abs(epoch))
    return sent


def _push_on_commit(tenant_id: uuid.UUID, key_ids: Sequence[uuid.UUID] = (), *, revoked: bool = False) -> None:
    transaction.on_commit(lambda: push_now(tenant_id=tenant_id, key_ids=key_ids, revoked=revoked), robust=True)


def _raise_tenant_epoch(tenant: Tenant) -> None:
    Tenant.objects.filter(id=tenant.id).update(epoch=F("epoch") + 1, epoch_changed_at=clock.now())
    tenant.refresh_from_db(fields=["epoch", "epoch_changed_at"])
    _push_on_commit(tenant.id)


def _owner(
    tenant: Tenant | None, plan: Plan | None, project: Project | None, api_key: ApiKey | None
) -> tuple[dict[str, Any], str]:
    if api_key is not None:
        return {"plan": None, "tenant": api_key.tenant, "project": None, "api_key": api_key}, Scope.KEY.value
    if project is not None:
        return {"plan": None, "tenant": project.tenant, "project": project, "api_key": None}, Scope.PROJECT.value
    if (tenant is None) == (plan is None):
        raise ValidationError("Limits belong to a tenant, a project, a key or a plan.")
    return {"plan": plan, "tenant": tenant, "project": None, "api_key": None}, Scope.TENANT.value


def _apply(row: Plan | Tenant | Project, changes: Mapping[str, Any], allowed: frozenset[str]) -> dict[str, Any]:
    """Set, check and save fields of a locked row; returns what they were."""
    unknown = set(changes) - allowed
    if unknown:
        raise ValidationError(dict.fromkeys(unknown, "This cannot be changed."))
    before = {field: getattr(row, field) for field in changes}
    for field, value in changes.items():
        setattr(row, field, value)
    row.full_clean()
    row.save()
    return before


def _must_be_open(tenant: Tenant) -> None:
    if tenant.state == TenantState.CLOSED:
        raise ValidationError("This tenant is closed.")


def _subject(row: Model) -> str:
    return f"{type(row).__name__.lower()}:{row.pk}"


def _facts(row: Tenant | ApiKey) -> dict[str, Any]:
    """What the audit trail keeps of a row. Never a digest or a key."""
    if isinstance(row, ApiKey):
        return {
            "name": row.name,
            "last4": row.last4,
            "project": str(row.project_id),
            "scopes": list(row.scopes),
            "allowed_models": row.allowed_models,
            "expires_at": row.expires_at.isoformat() if row.expires_at else None,
        }
    return {
        "name": row.name,
        "state": str(row.state),
        "plan": str(row.plan_id),
        "timezone": row.timezone,
        "policy": str(row.policy_id) if row.policy_id else None,
        "currency": row.currency,
        "evaluation_log": row.evaluation_log,
        "cut_to_affordable": row.cut_to_affordable,
        "queued_max": row.queued_max,
    }
