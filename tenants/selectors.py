"""Reads of the organisation. Called by the gateway's resolver (in a thread), the admin, the API and reports.

Invariant: every query names its tenant, or is made for an operator; nothing here writes.
"""

import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from contracts.errors import PermissionDenied
from contracts.tenancy import Limit, Metric, PolicyRef, Scope, ServiceClass, TenantContext
from tenants.limits.policy import is_money
from tenants.models import (
    ApiKey,
    BackgroundRequest,
    BackgroundState,
    LimitSetting,
    Member,
    Project,
    Tenant,
    TenantState,
)
from tenants.row_scope import as_tenant


def find_keys(asked: Sequence[Sequence[str]]) -> list[tuple[ApiKey, datetime | None] | None]:
    """For each text, given as its digests under every pepper: its live key and when this text of it ends. One query.

    None for a key that is unknown, revoked, expired, or of a closed tenant.
    """
    now = timezone.now()
    wanted = [one for digests in asked for one in digests]
    before = Q(previous_digest__in=wanted, previous_expires_at__gt=now) | Q(earlier__has_any_keys=wanted)
    rows = (
        ApiKey.objects.select_related("tenant__plan", "tenant__policy")
        .filter(Q(digest__in=wanted) | before)
        .filter(Q(expires_at=None) | Q(expires_at__gt=now), revoked_at=None, expired_at=None)
        .exclude(tenant__state=TenantState.CLOSED)
    )
    found: dict[str, tuple[ApiKey, datetime | None]] = {}
    for key in rows:
        found[key.digest] = key, key.expires_at
        for one, until in former_texts(key, now=now).items():
            found[one] = key, until if key.expires_at is None else min(until, key.expires_at)
    return [next((found[one] for one in digests if one in found), None) for digests in asked]


def former_texts(key: ApiKey, *, now: datetime) -> dict[str, datetime]:
    """The digests of a key's texts before its present one that still open it, and until when each does."""
    texts = {one: datetime.fromtimestamp(ends_ms / 1000, tz=UTC) for one, ends_ms in key.earlier.items()}
    if key.previous_digest and key.previous_expires_at:
        texts[key.previous_digest] = key.previous_expires_at
    return {one: until for one, until in texts.items() if until > now}


def load_contexts(asked: Sequence[Sequence[str]]) -> list[TenantContext | PermissionDenied | None]:
    """What steps 2-5 need of the callers whose keys have these digests, newest pepper first; two queries in all.

    In the order asked: None as `find_keys`; PermissionDenied, not raised, where the tenant is suspended.
    """
    found = find_keys(asked)
    limits = limits_of_keys([key for key, _ in filter(None, found)])
    return [None if one is None else _context(*one, limits[one[0].id]) for one in found]


def load_context(digests: Sequence[str]) -> TenantContext | None:
    """`load_contexts` of one key. Raises PermissionDenied when its tenant is suspended."""
    [context] = load_contexts([digests])
    if isinstance(context, PermissionDenied):
        raise context
    return context


def load_context_of(api_key_id: str) -> TenantContext | PermissionDenied | None:
    """The same of a key by its id, for work that was accepted under it."""
    now = timezone.now()
    rows = ApiKey.objects.select_related("tenant__plan", "tenant__policy").exclude(tenant__state=TenantState.CLOSED)
    live = Q(expires_at=None) | Q(expires_at__gt=now)
    key = rows.filter(live, id=api_key_id, revoked_at=None, expired_at=None).first()
    return None if key is None else _context(key, key.expires_at, limits_of(key))


def _context(key: ApiKey, ends: datetime | None, limits: tuple[Limit, ...]) -> TenantContext | PermissionDenied:
    tenant, plan = key.tenant, key.tenant.plan
    if tenant.state == TenantState.SUSPENDED:
        return PermissionDenied("This organization is suspended.", code="tenant_suspended")
    return TenantContext(
        tenant_id=str(tenant.id),
        tenant_name=tenant.name,
        project_id=str(key.project_id),
        api_key_id=str(key.id),
        key_epoch=key.epoch,
        tenant_epoch=tenant.epoch,
        scopes=frozenset(key.scopes),
        allowed_models=frozenset(key.allowed_models) if key.allowed_models is not None else None,
        limits=limits,
        queued_max=tenant.queued_max if tenant.queued_max is not None else plan.queued_max,
        max_tokens_default=plan.max_tokens_default,
        max_tokens_cap=plan.max_tokens_cap,
        weight_milli=plan.weight_milli,
        timezone=tenant.timezone,
        currency=tenant.currency,
        policy=_policy(tenant),
        evaluation_log=tenant.evaluation_log,
        cut_to_affordable=tenant.cut_to_affordable,
        allowed_networks=tuple(key.allowed_networks),
        expires_at_ms=_ms(ends) if ends is not None else None,
        service_class=ServiceClass(plan.service_class),
    )


def limits_of_keys(keys: Sequence[ApiKey]) -> dict[uuid.UUID, tuple[Limit, ...]]:
    """Every limit that stands over each key: its own, its project's, its tenant's, else its plan's. One query."""
    rows = LimitSetting.objects.filter(
        Q(api_key__in=[key.id for key in keys])
        | Q(project__in={key.project_id for key in keys})
        | Q(tenant__in={key.tenant_id for key in keys}, scope=Scope.TENANT.value)
        | Q(plan__in={key.tenant.plan_id for key in keys})
    )
    owned: dict[uuid.UUID | None, list[LimitSetting]] = {}
    for row in rows:
        owner = row.api_key_id or row.project_id or row.tenant_id or row.plan_id
        owned.setdefault(owner, []).append(row)
    return {key.id: _standing(owned, key) for key in keys}


def limits_of(key: ApiKey) -> tuple[Limit, ...]:
    """`limits_of_keys` of one key."""
    return limits_of_keys([key])[key.id]


def _standing(owned: Mapping[uuid.UUID | None, Sequence[LimitSetting]], key: ApiKey) -> tuple[Limit, ...]:
    chosen: dict[tuple[str, str, str], LimitSetting] = {}
    # The plan's come first, so that the tenant's own overwrite them.
    for owner in (key.tenant.plan_id, key.tenant_id, key.project_id, key.id):
        for row in owned.get(owner, ()):
            chosen[row.scope, row.metric, row.model] = row
    return tuple(as_limit(row) for _, row in sorted(chosen.items()))


def as_limit(row: LimitSetting) -> Limit:
    """A stored cap as the hot path knows it."""
    metric = Metric(row.metric)
    return Limit(
        scope=Scope(row.scope),
        metric=metric,
        cap=row.cap,
        model=row.model or None,
        alerts=tuple(row.alerts) if is_money(metric) else (),
        since_ms=_ms(row.since),
    )


def epochs(tenant_id: str, *, key_ids: Sequence[uuid.UUID] | None = None) -> tuple[dict[str, int], int]:
    """Epochs of a tenant's keys (all, or those named) and of the tenant; negative = over or suspended.

    Raises Tenant.DoesNotExist.
    """
    tenant = Tenant.objects.only("epoch", "state").get(id=tenant_id)
    keys = ApiKey.objects.filter(tenant_id=tenant_id)
    if key_ids is not None:
        keys = keys.filter(id__in=key_ids)
    signed = {
        str(key_id): epoch if revoked_at is None and expired_at is None else -epoch
        for key_id, epoch, revoked_at, expired_at in keys.values_list("id", "epoch", "revoked_at", "expired_at")
    }
    return signed, tenant.epoch if tenant.state == TenantState.ACTIVE else -tenant.epoch


def background_request(
    tenant_id: uuid.UUID, *, request_id: uuid.UUID | None = None, key_digest: str = ""
) -> BackgroundRequest | None:
    """A tenant's background request by its id or, newest first, by the digest of its Idempotency-Key."""
    with transaction.atomic(), as_tenant(tenant_id):
        if request_id is not None:
            return BackgroundRequest.objects.filter(tenant_id=tenant_id, id=request_id).first()
        known = BackgroundRequest.objects.filter(tenant_id=tenant_id, key_digest=key_digest)
        return known.exclude(state=BackgroundState.ACCEPTED).order_by("-id").first()


def open_background(*, after: uuid.UUID | None = None, limit: int) -> list[BackgroundRequest]:
    """Background requests of all tenants that have not ended, oldest first, without their prompts."""
    rows = BackgroundRequest.objects.exclude(state=BackgroundState.ENDED).defer("body", "answer").order_by("id")
    return list((rows if after is None else rows.filter(id__gt=after))[:limit])


def count_open_background() -> int:
    return BackgroundRequest.objects.exclude(state=BackgroundState.ENDED).count()


def prompt_of_background(request_id: uuid.UUID) -> bytes | None:
    """The sealed prompt; None once it has ended."""
    found = BackgroundRequest.objects.filter(id=request_id).values_list("body", flat=True).first()
    return None if found is None else bytes(found)


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


def _ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def _policy(tenant: Tenant) -> PolicyRef | None:
    """Version 0 of a policy that was assigned but never published: nothing is under that name, so the guard refuses."""
    policy = tenant.policy
    if policy is None:
        return None
    return PolicyRef(policy_id=str(policy.id), version=policy.published_version)
