"""What every service does alike: name a row in an event, say what it was, set fields of a locked row."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import Model

from tenants.models import ApiKey, Plan, Project, Tenant, TenantState


def subject(row: Model) -> str:
    """`apikey:0198…`, as the audit trail names what an event is about."""
    return f"{type(row).__name__.lower()}:{row.pk}"


def apply(row: Plan | Tenant | Project | ApiKey, changes: Mapping[str, Any], allowed: frozenset[str]) -> dict[str, Any]:
    """Set, check and save fields of a locked row; returns what they were. Raises ValidationError."""
    unknown = set(changes) - allowed
    if unknown:
        raise ValidationError(dict.fromkeys(unknown, "This cannot be changed."))
    before = {field: getattr(row, field) for field in changes}
    for field, value in changes.items():
        setattr(row, field, value)
    row.full_clean()
    row.save()
    return before


def must_be_open(tenant: Tenant) -> None:
    """Nothing is added to a tenant that ended. Raises ValidationError."""
    if tenant.state == TenantState.CLOSED:
        raise ValidationError("This tenant is closed.")


def tenant_facts(row: Tenant) -> dict[str, Any]:
    """What the audit trail keeps of a tenant."""
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
        "prepaid": row.prepaid,
    }


def plan_facts(row: Plan) -> dict[str, Any]:
    """What the audit trail keeps of a plan; its limits have events of their own."""
    return {
        "name": row.name,
        "weight_milli": row.weight_milli,
        "queued_max": row.queued_max,
        "max_tokens_default": row.max_tokens_default,
        "max_tokens_cap": row.max_tokens_cap,
        "service_class": str(row.service_class),
        "price_list": str(row.price_list_id) if row.price_list_id else None,
    }


def key_facts(row: ApiKey) -> dict[str, Any]:
    """What the audit trail keeps of a key. Never a digest or its text."""
    return {
        "name": row.name,
        "last4": row.last4,
        "project": str(row.project_id),
        "scopes": list(row.scopes),
        "allowed_models": row.allowed_models,
        "allowed_networks": list(row.allowed_networks),
        "expires_at": moment(row.expires_at),
    }


def moment(at: datetime | None) -> str | None:
    """An instant as JSON keeps it."""
    return at.isoformat() if at else None
