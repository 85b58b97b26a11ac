"""The admin's sidebar, in the order of a request's nine steps."""

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest
from django.urls import reverse

PAGES = {"recent_requests": "requests"}  # whose name is not its permission's


def sidebar(request: HttpRequest) -> list[dict[str, Any]]:
    """Groups of links for django-unfold."""
    return [
        _group(
            "Traffic",
            ("Recent requests", "list_alt", "recent_requests"),
            ("Why refused?", "block", "refusals"),
            ("Dead letters", "dangerous", "dead_letters"),
            ("Limits now", "speed", "limits"),
            ("Usage", "monitoring", "usage"),
        ),
        _group(
            "Customers",
            ("Tenants", "apartment", "admin:tenants_tenant_changelist"),
            ("API keys", "key", "admin:tenants_apikey_changelist"),
            ("Plans", "workspace_premium", "admin:tenants_plan_changelist"),
            ("Limits", "tune", "admin:tenants_limitsetting_changelist"),
            ("Audit trail", "history", "admin:tenants_auditentry_changelist"),
            ("Webhooks", "webhook", "admin:webhooks_endpoint_changelist"),
            ("Webhook deliveries", "outbox", "admin:webhooks_delivery_changelist"),
        ),
        _group(
            "Serving",
            ("Models", "deployed_code", "admin:controlplane_servedmodel_changelist"),
            ("Engines", "memory", "engines"),
            ("Engine configurations", "settings_applications", "admin:controlplane_engineconfig_changelist"),
            ("Guardrail policies", "shield", "admin:safety_policy_changelist"),
        ),
        _group(
            "Money",
            ("Prices", "sell", "admin:billing_priceversion_changelist"),
            ("Price lists", "list", "admin:billing_pricelist_changelist"),
            ("Periods", "event_available", "admin:billing_billingperiod_changelist"),
            ("Invoices", "receipt_long", "admin:billing_invoice_changelist"),
            ("Reminders", "notification_important", "admin:billing_dunningstep_changelist"),
            ("Adjustments", "tune", "admin:billing_adjustment_changelist"),
            ("Contract terms", "contract", "admin:billing_contractterms_changelist"),
            ("Credit", "savings", "admin:billing_creditgrant_changelist"),
            ("Credit alerts", "notifications", "admin:billing_creditalert_changelist"),
            ("Ledger", "account_balance", "admin:billing_ledgertransaction_changelist"),
            ("Billing addresses", "home_work", "admin:billing_billingprofile_changelist"),
            ("Tax rates", "percent", "admin:billing_taxrate_changelist"),
            ("Issuer", "storefront", "admin:billing_issuer_changelist"),
            ("Receipt keys", "key", "admin:billing_receiptkey_changelist"),
            ("Jobs", "task", "admin:billing_billingjob_changelist"),
        ),
        _group(
            "Access",
            ("Users", "person", "admin:auth_user_changelist"),
            ("Roles", "group", "admin:auth_group_changelist"),
            ("Sign-ins", "login", "admin:axes_accesslog_changelist"),
            ("Wrong sign-ins", "lock", "admin:axes_accessattempt_changelist"),
            ("My second factor", "shield_person", "mfa_index"),
        ),
    ]


def _group(title: str, *items: tuple[str, str, str]) -> dict[str, Any]:
    return {
        "title": title,
        "separator": True,
        "items": [
            {"title": label, "icon": icon, "link": reverse(name), "permission": _allowed(name)}
            for label, icon, name in items
        ],
    }


def _allowed(name: str) -> Callable[[HttpRequest], bool]:
    """Whether a person may open a link: what nobody can open, nobody sees."""
    if name == "mfa_index":
        return lambda request: True
    list_of = name.removeprefix("admin:").removesuffix("_changelist")
    app, _, model = list_of.partition("_")
    permission = f"{app}.view_{model}" if name.startswith("admin:") else f"controlplane.open_{PAGES.get(name, name)}"
    return lambda request: request.user.has_perm(permission)
