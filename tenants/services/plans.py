"""Plans: what their tenants get unless they say otherwise."""

from collections.abc import Mapping
from typing import Any

from django.db import transaction

from contracts.tenancy import ServiceClass
from tenants.actors import SYSTEM, Actor
from tenants.events import record
from tenants.models import Plan, Tenant
from tenants.services.facts import apply, plan_facts, subject
from tenants.services.pushing import raise_tenant_epoch

_CHANGEABLE = frozenset(
    {"name", "weight_milli", "queued_max", "max_tokens_default", "max_tokens_cap", "service_class", "price_list"}
)


@transaction.atomic
def create_plan(
    *,
    name: str,
    weight_milli: int = 1000,
    queued_max: int = 1000,
    max_tokens_default: int = 512,
    max_tokens_cap: int | None = None,
    service_class: str = ServiceClass.INTERACTIVE,
    price_list: Any = None,
    actor: Actor = SYSTEM,
) -> Plan:
    """A plan; its limits are set by `set_limits(plan=…)`. `price_list`: a billing.PriceList, or None."""
    plan = Plan(
        name=name,
        weight_milli=weight_milli,
        queued_max=queued_max,
        max_tokens_default=max_tokens_default,
        max_tokens_cap=max_tokens_cap,
        service_class=service_class,
        price_list=price_list,
    )
    plan.full_clean()
    plan.save()
    record("plan.created", tenant_id=None, subject=subject(plan), actor=actor, after=plan_facts(plan))
    return plan


@transaction.atomic
def change_plan(*, plan: Plan, changes: Mapping[str, Any], actor: Actor = SYSTEM) -> Plan:
    """Change fields of a plan; its tenants feel it at once, in their prices too."""
    locked = Plan.objects.select_for_update().get(id=plan.id)
    before = plan_facts(locked)
    apply(locked, changes, _CHANGEABLE)
    for tenant in Tenant.objects.filter(plan=locked).order_by("id"):
        raise_tenant_epoch(tenant)
    record(
        "plan.changed", tenant_id=None, subject=subject(locked), actor=actor, before=before, after=plan_facts(locked)
    )
    return locked
