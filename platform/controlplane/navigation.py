"""The admin's sidebar, in the order of a request's nine steps."""

from typing import Any

from django.http import HttpRequest
from django.urls import reverse


def sidebar(request: HttpRequest) -> list[dict[str, Any]]:
    """Groups of links for django-unfold."""
    return [
        _group("Traffic", ("Recent requests", "list_alt", "recent_requests"), ("Usage", "monitoring", "usage")),
        _group(
            "Customers",
            ("Tenants", "apartment", "admin:tenants_tenant_changelist"),
            ("API keys", "key", "admin:tenants_apikey_changelist"),
            ("Plans", "workspace_premium", "admin:tenants_plan_changelist"),
            ("Limits", "speed", "admin:tenants_limitsetting_changelist"),
            ("Audit trail", "history", "admin:tenants_auditentry_changelist"),
            ("Webhooks", "webhook", "admin:webhooks_endpoint_changelist"),
            ("Webhook deliveries", "outbox", "admin:webhooks_delivery_changelist"),
        ),
        _group(
            "Serving",
            ("Models", "deployed_code", "admin:controlplane_servedmodel_changelist"),
            ("Engines", "memory", "engines"),
            ("Guardrail policies", "shield", "admin:safety_policy_changelist"),
        ),
        _group(
            "Money",
            ("Prices", "sell", "admin:billing_priceversion_changelist"),
            ("Ledger", "account_balance", "admin:billing_ledgertransaction_changelist"),
        ),
        _group("Access", ("Users", "person", "admin:auth_user_changelist")),
    ]


def _group(title: str, *items: tuple[str, str, str]) -> dict[str, Any]:
    return {
        "title": title,
        "separator": True,
        "items": [{"title": label, "icon": icon, "link": reverse(name)} for label, icon, name in items],
    }
