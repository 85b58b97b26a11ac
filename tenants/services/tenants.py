"""Tenants: made, changed, suspended, closed. A closed one stays for old reports and gives its name back."""

import zoneinfo
from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone as clock

from tenants.actors import SYSTEM, Actor
from tenants.events import record
from tenants.models import Plan, Tenant, TenantState
from tenants.services.facts import apply, subject, tenant_facts
from tenants.services.pushing import push_on_commit, raise_tenant_epoch

_CHANGEABLE = frozenset(
    {"name", "plan", "timezone", "policy", "evaluation_log", "cut_to_affordable", "queued_max", "prepaid"}
)
# Files that lie beside the zones on some systems: one says what this machine's clock shows, the other that nobody did.
_NO_ZONES = frozenset({"localtime", "Factory", "posixrules"})


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
    prepaid: bool = False,
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
        prepaid=prepaid,
    )
    tenant.full_clean()
    tenant.save()
    record("tenant.created", tenant_id=tenant.id, subject=subject(tenant), actor=actor, after=tenant_facts(tenant))
    push_on_commit(tenant.id)
    return tenant


@transaction.atomic
def change_tenant(*, tenant: Tenant, changes: Mapping[str, Any], actor: Actor = SYSTEM) -> Tenant:
    """Change settings of a tenant: name, plan, timezone, policy, queued_max, evaluation_log, cut_to_affordable, and
    prepaid, whose limit comes and goes in the same transaction (`controlplane.prepaid`).
    """
    locked = Tenant.objects.select_for_update().get(id=tenant.id)
    before = tenant_facts(locked)
    check_timezone(changes.get("timezone", locked.timezone))
    if changes.get("plan", locked.plan) != locked.plan:
        locked.plan_since = clock.now()
    apply(locked, changes, _CHANGEABLE)
    raise_tenant_epoch(locked)
    after = tenant_facts(locked)
    record("tenant.changed", tenant_id=locked.id, subject=subject(locked), actor=actor, before=before, after=after)
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


def check_timezone(name: str) -> None:
    """Refuse a zone that the limits could not count in. Raises ValidationError."""
    if name in _NO_ZONES or name not in zoneinfo.available_timezones():
        raise ValidationError({"timezone": f"{name} is not an IANA time zone. Name one like Europe/Berlin or UTC."})


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
    raise_tenant_epoch(locked)
    after = {"state": str(state), "reason": reason}
    record(event, tenant_id=locked.id, subject=subject(locked), actor=actor, before=before, after=after)
    return locked
