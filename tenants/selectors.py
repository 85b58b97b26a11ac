"""Reads of the organisation. Called by the gateway's resolver (in a thread), the admin, the API and reports.

Invariant: every query names its tenant, or is made for an operator; nothing here writes.
"""

import uuid
from collections.abc import Sequence

from django.db.models import Q, QuerySet
from django.utils import timezone

from contracts.errors import PermissionDenied
from contracts.tenancy import Limit, Metric, PolicyRef, Scope, TenantContext
from tenants.models import ApiKey, LimitSetting, Member, Project, Tenant, TenantState


def load_context(digest: str) -> TenantContext | None:
    """What steps 2-5 need of the caller whose key has this digest; two queries.

    None for a key that is unknown, revoked, expired, or of a closed tenant. Raises PermissionDenied when the tenant is
    suspended.
    """
    now = timezone.now()
    key = (
        ApiKey.objects.select_related("tenant__plan", "tenant__policy")
        .filter(digest=digest, revoked_at=None)
        .filter(Q(expires_at=None) | Q(expires_at__gt=now))
        .exclude(tenant__state=TenantState.CLOSED)
        .first()
    )
    if key is None:
        return None
    tenant, plan = key.tenant, key.tenant.plan
    if tenant.state == TenantState.SUSPENDED:
        raise PermissionDenied("This organization is suspended.", code="tenant_suspended")
    return TenantContext(
        tenant_id=str(tenant.id),
        tenant_name=tenant.name,
        project_id=str(key.project_id),
        api_key_id=str(key.id),
        key_epoch=key.epoch,
        tenant_epoch=tenant.epoch,
        scopes=frozenset(key.scopes),
        allowed_models=frozenset(key.allowed_models) if key.allowed_models is not None else None,
        limits=limits_of(key),
        queued_max=tenant.queued_max if tenant.queued_max is not None else plan.queued_max,
        max_tokens_default=plan.max_tokens_default,
        max_tokens_cap=plan.max_tokens_cap,
        weight_milli=plan.weight_milli,
        timezone=tenant.timezone,
        currency=tenant.currency,
        policy=_policy(tenant),
        evaluation_log=tenant.evaluation_log,
        cut_to_affordable=tenant.cut_to_affordable,
    )


def limits_of(key: ApiKey) -> tuple[Limit, ...]:
    """Every limit that stands over one key: its own, its project's, its tenant's, else its plan's. One query."""
    rows = LimitSetting.objects.filter(
        Q(api_key=key)
        | Q(project_id=key.project_id)
        | Q(tenant_id=key.tenant_id, scope=Scope.TENANT.value)
        | Q(plan_id=key.tenant.plan_id)
    )
    caps: dict[tuple[Scope, Metric], int] = {}
    # The plan's come first, so that the tenant's own overwrite them.
    for row in sorted(rows, key=lambda row: row.plan_id is None):
        caps[Scope(row.scope), Metric(row.metric)] = row.cap
    return tuple(Limit(scope=scope, metric=metric, cap=cap) for (scope, metric), cap in sorted(caps.items()))


def epochs(tenant_id: str, *, key_ids: Sequence[uuid.UUID] | None = None) -> tuple[dict[str, int], int]:
    """Epochs of a tenant's keys (all, or those named) and of the tenant; negative = revoked, suspended or closed.

    Raises Tenant.DoesNotExist.
    """
    tenant = Tenant.objects.only("epoch", "state").get(id=tenant_id)
    keys = ApiKey.objects.filter(tenant_id=tenant_id)
    if key_ids is not None:
        keys = keys.filter(id__in=key_ids)
    signed = {
        str(key_id): epoch if revoked_at is None else -epoch
        for key_id, epoch, revoked_at in keys.values_list("id", "epoch", "revoked_at")
    }
    return signed, tenant.epoch if tenant.state == TenantState.ACTIVE else -tenant.epoch


def tenants_of_user(user_id: int) -> QuerySet[Tenant]:
    """Tenants in which a person has a role."""
    return Tenant.objects.filter(members__user_id=user_id, members__deleted_at=None)


def projects_of(tenant_id: str) -> QuerySet[Project]:
    """Live projects of a tenant."""
    return Project.objects.filter(tenant_id=tenant_id, deleted_at=None)


def keys_of(tenant_id: str) -> QuerySet[ApiKey]:
    """Keys of a tenant, revoked ones too."""
    return ApiKey.objects.filter(tenant_id=tenant_id).select_related("project")


def members_of(tenant_id: str) -> QuerySet[Member]:
    """People with a role in a tenant."""
    return Member.objects.filter(tenant_id=tenant_id, deleted_at=None).select_related("user")


def names_of(tenant_ids: Sequence[str]) -> dict[str, str]:
    """Names for reports, closed tenants too."""
    return {str(key): name for key, name in Tenant.objects.filter(id__in=tenant_ids).values_list("id", "name")}


def _policy(tenant: Tenant) -> PolicyRef | None:
    policy = tenant.policy
    if policy is None or policy.published_version == 0:
        return None
    return PolicyRef(policy_id=str(policy.id), version=policy.published_version)
