"""What an event is about, by name: `apikey:0198…` is “API key m-acme (…x7Qp)”. Called by `audit`.

A query for each kind of thing, however many are asked for. What is no longer there, or of no kind known here, keeps its
id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from django.apps import apps
from django.urls import reverse
from django.utils.text import capfirst

# kind of subject -> model, and the name of the page that shows one
KINDS: Mapping[str, tuple[str, str]] = {
    "tenant": ("tenants.tenant", "admin:tenants_tenant_change"),
    "plan": ("tenants.plan", "admin:tenants_plan_change"),
    "project": ("tenants.project", ""),
    "apikey": ("tenants.apikey", "admin:tenants_apikey_change"),
    "key": ("tenants.apikey", "admin:tenants_apikey_change"),
    "member": ("tenants.member", ""),
    "webhook": ("webhooks.endpoint", "admin:webhooks_endpoint_change"),
    "policy": ("safety.policy", "admin:safety_policy_change"),
    "price": ("billing.priceversion", ""),
    "invoice": ("billing.invoice", ""),
}


def name_subjects(subjects: Iterable[str]) -> dict[str, str]:
    """Each subject in words."""
    asked: dict[str, dict[UUID, str]] = {}
    named: dict[str, str] = {}
    for subject in subjects:
        kind, _, text = subject.partition(":")
        key = _uuid(text)
        named[subject] = f"{kind} {text}".strip() or "-"
        if kind in KINDS and key is not None:
            asked.setdefault(kind, {})[key] = subject
    for kind, keys in asked.items():
        model = apps.get_model(KINDS[kind][0])
        what = capfirst(str(model._meta.verbose_name))  # noqa: SLF001 - Django's own API
        for row in model._default_manager.filter(pk__in=keys).select_related():  # noqa: SLF001
            named[keys[row.pk]] = f"{what} {row}"
    return named


def subject_link(subject: str) -> str | None:
    """The page of what an event is about, for readers of the audit trail; None where there is none."""
    kind, _, text = subject.partition(":")
    key = _uuid(text)
    if key is None:
        return None
    if kind == "request":
        return reverse("request_timeline", args=[key])
    model, page = KINDS.get(kind, ("", ""))
    if not page or not apps.get_model(model)._default_manager.filter(pk=key).exists():  # noqa: SLF001
        return None
    return reverse(page, args=[key])


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
