"""Limits now, to look at only: for a tenant with its projects and keys, or all that stands over one key."""

from typing import Any
from uuid import UUID

from asgiref.sync import async_to_sync
from django.contrib.auth.decorators import permission_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from contracts.errors import Unavailable
from contracts.money import text_from_nano
from contracts.tenancy import Limit
from controlplane.pages.frame import Row, link, page
from controlplane.pages.standing import Part, PartUse, organizations, parts_of_key, parts_of_tenant, read, read_each
from tenants.limits.holds import LimitUse
from tenants.limits.policy import RULES, is_money
from tenants.models import ApiKey, Tenant

TENANTS_SHOWN = 200
PARTS_SHOWN = 100  # the organization, then projects and keys with limits of their own
AWAY = "Redis does not answer: what is used and held cannot be shown. Requests are refused meanwhile."
HEADERS = ["Limit", "Cap", "Used", "Held", "Free", "", "Whole again in"]


@permission_required("controlplane.open_limits", raise_exception=True)
def tenants(request: HttpRequest) -> HttpResponse:
    """Which tenant to look at: each with the limit of its organization that is fullest, the fullest tenants first."""
    asked = _asked(request)
    named = Tenant.objects.filter(name__icontains=asked).select_related("plan").order_by("name")
    found = list(named[:TENANTS_SHOWN])
    problem, uses = None, [PartUse(part=Part(title="", limits=()), uses=(), compared=())] * len(found)
    try:
        uses = async_to_sync(read_each)(list(zip(found, organizations(found), strict=True)))
    except Unavailable:
        problem = AWAY
    fullest = [max(use.uses, key=fullness, default=None) for use in uses]
    order = sorted(zip(found, fullest, strict=True), key=lambda pair: -fullness(pair[1]))
    rows = [_tenant_row(tenant, use) for tenant, use in order]
    table = {"headers": ["Tenant", "Plan", "State", "Fullest limit", "Used", "Held", "Free", ""], "rows": rows}
    context = {"title": "Limits now", "tables": [{"table": table}] if rows else [], "problem": problem}
    return page(request, "limits", {**context, **_search(asked, named.count(), TENANTS_SHOWN, "tenants")})


@permission_required("controlplane.open_limits", raise_exception=True)
def tenant_limits(request: HttpRequest, tenant_id: UUID) -> HttpResponse:
    """A tenant's own limits, and those of its projects and keys."""
    tenant = get_object_or_404(Tenant.objects.select_related("plan"), id=tenant_id)
    facts = [("Tenant", tenant.name), ("Plan", tenant.plan.name), ("Calendar", tenant.timezone)]
    asked, parts = _asked(request), parts_of_tenant(tenant)
    named = [part for part in parts if asked.casefold() in part.title.casefold()]
    search = _search(asked, len(named), PARTS_SHOWN, "projects and keys") if len(parts) > 1 else {}
    return _answer(request, f"Limits of {tenant.name} now", tenant, named[:PARTS_SHOWN], facts, search)


@permission_required("controlplane.open_limits", raise_exception=True)
def key_limits(request: HttpRequest, key_id: UUID) -> HttpResponse:
    """All limits that a request with this key must fit into."""
    key = get_object_or_404(ApiKey.objects.select_related("tenant__plan", "project"), id=key_id)
    tenant_link = link(reverse("tenant_limits", args=[key.tenant_id]), key.tenant.name)
    facts = [("Key", f"{key.name} (…{key.last4})"), ("Tenant", tenant_link), ("Calendar", key.tenant.timezone)]
    return _answer(request, f"Limits over {key.name} now", key.tenant, parts_of_key(key), facts)


def fullness(use: LimitUse | None) -> float:
    """The part of a cap that is used or held; nothing where there is no limit, all where it blocks."""
    if use is None:
        return 0.0
    return (use.used + use.held) / use.limit.cap if use.limit.cap else 1.0


def _tenant_row(tenant: Tenant, use: LimitUse | None) -> Row:
    known = [link(reverse("tenant_limits", args=[tenant.id]), tenant.name), tenant.plan.name]
    known.append(tenant.get_state_display())
    if use is None:
        return [*known, *[""] * 5]
    amounts = [_amount(use.limit, amount, tenant.currency) for amount in (use.used, use.held, use.free)]
    return [*known, _name(use.limit), *amounts, _meter(use)]


def _answer(
    request: HttpRequest,
    title: str,
    tenant: Tenant,
    parts: list[Part],
    facts: list[tuple[str, str | SafeString]],
    search: dict[str, Any] | None = None,
) -> HttpResponse:
    problem, used = None, list[PartUse]()
    try:
        used = async_to_sync(read)(tenant, parts)
    except Unavailable:
        problem = AWAY
    tables = [_table(part, tenant.currency) for part in used if part.part.limits]
    context = {"title": title, "facts": facts, "tables": tables, "problem": problem, "unlimited": not tables}
    return page(request, "limits", {**context, **(search or {})})


def _asked(request: HttpRequest) -> str:
    return request.GET.get("name", "").strip()[:200]


def _search(asked: str, found: int, shown: int, of: str) -> dict[str, Any]:
    """The page's search by name, and what it says when there is more than it shows, or nothing."""
    told = f"The first {shown} of {found:,} {of} by name are shown: search for the others." if found > shown else ""
    if asked and not found:
        told = f"No {of} have this in their name."
    return {"searches": of, "asked": asked, "told": told}


def _table(use: PartUse, currency: str) -> dict[str, Any]:
    rows = [_row(one, currency) for one in use.uses]
    rows += [[_name(limit), _amount(limit, limit.cap, currency), *[""] * 5] for limit in use.compared]
    return {"title": use.part.title, "table": {"headers": HEADERS, "rows": rows}}


def _row(use: LimitUse, currency: str) -> Row:
    limit = use.limit
    amounts = [_amount(limit, amount, currency) for amount in (limit.cap, use.used, use.held, use.free)]
    return [_name(limit), *amounts, _meter(use), duration(use.reset_ms) if use.used else ""]


def _name(limit: Limit) -> str:
    return RULES[limit.metric].unit.capitalize() + (f", {limit.model}" if limit.model else "")


def _amount(limit: Limit, amount: int, currency: str) -> str:
    return f"{text_from_nano(amount)} {currency}" if is_money(limit.metric) else f"{amount:,}"


def _meter(use: LimitUse) -> SafeString:
    """Used and held of the cap, as two bars in one; red when nothing is free."""
    cap = max(1, use.limit.cap)
    used = min(100, round(100 * use.used / cap))
    held = min(100 - used, round(100 * use.held / cap))
    said = "nothing is free" if use.free == 0 else f"{used} % used, {held} % held"
    css = "weir-meter full" if use.free == 0 else "weir-meter"
    bars = '<span class="{}" title="{}"><i style="width: {}%"></i><i style="width: {}%"></i></span>'
    return format_html(bars, css, said, 100 if use.limit.cap == 0 else used, held)


def duration(ms: int) -> str:
    """A span as a person reads it, rounded up."""
    if ms <= 0:
        return ""
    seconds = -(-ms // 1000)
    if seconds < 120:
        return f"{seconds} s"
    if seconds < 7_200:
        return f"{-(-seconds // 60)} min"
    if seconds < 172_800:
        return f"{-(-seconds // 3600)} h"
    return f"{-(-seconds // 86_400)} days"
