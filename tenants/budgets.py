"""The limits of a whole tenant with the names of their counters. Read by the audit of the limits.

Invariant: the names are made by `tenants.limits.keys`, as the hold makes them.
"""

from dataclasses import dataclass, replace
from datetime import datetime

from django.db.models import Q

from contracts.tenancy import Limit
from tenants.limits import keys as names
from tenants.models import LimitSetting, Tenant, TenantState
from tenants.selectors import as_limit


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedLimit:
    """One limit and its counter; `owner_id` is the key's, the project's or the tenant's.

    The `since_ms` of a plan's limit is when it began for this tenant.
    """

    limit: Limit
    owner_id: str
    counter: str


def counted_limits(tenant_id: str) -> list[CountedLimit]:
    """Every limit of a tenant, its projects and keys; its plan's where it has none of its own. One per counter.

    Raises Tenant.DoesNotExist.
    """
    tenant = Tenant.objects.only("plan_id", "plan_since").get(id=tenant_id)
    joined_ms = int(tenant.plan_since.timestamp() * 1000)
    rows = LimitSetting.objects.filter(Q(tenant_id=tenant_id) | Q(plan_id=tenant.plan_id))
    found: dict[str, CountedLimit] = {}
    for row in sorted(rows, key=lambda row: row.plan_id is None):
        limit = as_limit(row)
        if row.plan_id is not None:
            limit = replace(limit, since_ms=max(limit.since_ms, joined_ms))
        project_id, api_key_id = str(row.project_id or ""), str(row.api_key_id or "")
        counter = names.counter(limit, tenant_id=tenant_id, project_id=project_id, api_key_id=api_key_id)
        found[counter] = CountedLimit(limit=limit, owner_id=api_key_id or project_id or tenant_id, counter=counter)
    return list(found.values())


def live_tenants() -> list[tuple[str, str]]:
    """(id, time zone) of every tenant that is not closed."""
    rows = Tenant.objects.exclude(state=TenantState.CLOSED).order_by("id").values_list("id", "timezone")
    return [(str(tenant_id), zone) for tenant_id, zone in rows]


def tenants_with_new_limits(*, since: datetime) -> list[tuple[str, str]]:
    """(id, time zone) of every live tenant for whom a limit began after `since`: its own, its plan's, or its plan."""
    new = LimitSetting.objects.filter(since__gt=since)
    rows = Tenant.objects.exclude(state=TenantState.CLOSED).filter(
        Q(plan_since__gt=since)
        | Q(id__in=new.filter(tenant__isnull=False).values("tenant_id"))
        | Q(plan_id__in=new.filter(plan__isnull=False).values("plan_id"))
    )
    return [(str(tenant_id), zone) for tenant_id, zone in rows.order_by("id").values_list("id", "timezone")]
