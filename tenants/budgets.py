"""The limits of a whole tenant with the names of their counters. Read by the audit of the limits.

Invariant: the names are made by `tenants.limits.keys`, as the hold makes them.
"""

from dataclasses import dataclass

from django.db.models import Q

from contracts.tenancy import Limit
from tenants.limits import keys as names
from tenants.models import LimitSetting, Tenant, TenantState
from tenants.selectors import as_limit


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedLimit:
    """One limit and its counter; `owner_id` is the key's, the project's or the tenant's."""

    limit: Limit
    owner_id: str
    counter: str


def counted_limits(tenant_id: str) -> list[CountedLimit]:
    """Every limit of a tenant, its projects and keys; its plan's where it has none of its own. One per counter.

    Raises Tenant.DoesNotExist.
    """
    tenant = Tenant.objects.only("plan_id").get(id=tenant_id)
    rows = LimitSetting.objects.filter(Q(tenant_id=tenant_id) | Q(plan_id=tenant.plan_id))
    found: dict[str, CountedLimit] = {}
    for row in sorted(rows, key=lambda row: row.plan_id is None):
        limit = as_limit(row)
        project_id, api_key_id = str(row.project_id or ""), str(row.api_key_id or "")
        counter = names.counter(limit, tenant_id=tenant_id, project_id=project_id, api_key_id=api_key_id)
        found[counter] = CountedLimit(limit=limit, owner_id=api_key_id or project_id or tenant_id, counter=counter)
    return list(found.values())


def live_tenants() -> list[tuple[str, str]]:
    """(id, time zone) of every tenant that is not closed."""
    rows = Tenant.objects.exclude(state=TenantState.CLOSED).order_by("id").values_list("id", "timezone")
    return [(str(tenant_id), zone) for tenant_id, zone in rows]
