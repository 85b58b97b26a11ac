"""Why was this refused? Looks a request up by its id: among refusals of the last week, else among metered requests."""

import asyncio
from typing import Any
from uuid import UUID

from asgiref.sync import async_to_sync
from django.contrib.auth.decorators import permission_required
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from redis.exceptions import RedisError

from billing import selectors as usage_reports
from billing.clickhouse.shapes import RequestRow
from controlplane.env import environment
from controlplane.pages.frame import Row, link, moment, page
from gateway.refusals import Refusal, Refusals
from stores.clickhouse import ClickHouseUnavailable
from stores.redis import open_redis
from stores.system import SystemClock
from tenants.models import ApiKey, Project, Tenant

SHOWN = 50
TENANTS_SEARCHED = 5_000
READ_SECONDS = 5.0
PREFIXES = ("chatcmpl-", "cmpl-", "resp_", "req_")
NO_ID = "This is no request id: it looks like 01920b1c-…, and every answer carries it as x-request-id."
UNKNOWN = (
    "No refusal of this request is known. Refusals are kept for a week, the last thousand of each tenant; a request "
    "that never reached this platform leaves no trace here."
)


@permission_required("controlplane.open_refusals", raise_exception=True)
def refusals(request: HttpRequest) -> HttpResponse:
    """By `?request=` one request; without it the newest refusals of `?tenant=`, or of unknown callers."""
    asked = request.GET.get("request", "").strip()[:200]
    tenant = request.GET.get("tenant", "")[:36]
    names = {str(key): name for key, name in Tenant.objects.order_by("name").values_list("id", "name")}
    context: dict[str, Any] = {"title": "Why refused?", "asked": asked, "tenants": names.items()}
    try:
        context |= _one(asked, names) if asked else _newest(tenant if tenant in names else "", names)
    except (RedisError, OSError, TimeoutError):
        context["problem"] = "Redis does not answer: refusals cannot be read right now."
    return page(request, "refusals", context)


def _one(asked: str, names: dict[str, str]) -> dict[str, Any]:
    request_id = bare(asked)
    if request_id is None:
        return {"problem": NO_ID}
    found = async_to_sync(_find)(request_id, list(names)[:TENANTS_SEARCHED])
    if found is not None:
        return {"facts": _facts(found, names)}
    row, problem = _metered(request_id)
    if row is None:
        return {"problem": problem or UNKNOWN}
    timeline = link(reverse("request_timeline", args=[request_id]), "its timeline")
    outcome = row.outcome + (f" ({row.error_code})" if row.error_code else "")
    return {"facts": [("Answer", "It was accepted."), ("Outcome", outcome), ("See", timeline)]}


def _newest(tenant: str, names: dict[str, str]) -> dict[str, Any]:
    rows = [_row(refusal) for refusal in async_to_sync(_latest)(tenant)]
    headers = ["At", "Request", "Answer", "Why"]
    of = names.get(tenant, "callers without a valid key")
    return {"tenant": tenant, "of": of, "table": {"headers": headers, "rows": rows}}


def _row(refusal: Refusal) -> Row:
    where = f"{reverse('refusals')}?request={refusal.request_id}"
    answer = f"{refusal.status} {refusal.code}"
    return [moment(refusal.at_ms), link(where, f"…{refusal.request_id[-12:]}"), answer, refusal.message]


def _facts(refusal: Refusal, names: dict[str, str]) -> list[tuple[str, Any]]:
    key = ApiKey.objects.filter(id=refusal.api_key_id).first() if refusal.api_key_id else None
    project = Project.objects.filter(id=refusal.project_id).first() if refusal.project_id else None
    facts: list[tuple[str, Any]] = [
        ("Why", refusal.message),
        ("Answer", f"{refusal.status} {refusal.code}"),
        ("Field", refusal.param or ""),
        ("Try again after", f"{refusal.retry_after_ms / 1000:g} s" if refusal.retry_after_ms is not None else ""),
        ("At", moment(refusal.at_ms)),
        ("Path", refusal.path),
        ("Tenant", names.get(refusal.tenant_id, refusal.tenant_id) or "not known: no valid key"),
        ("Project", project.name if project else ""),
        ("API key", f"{key.name} (…{key.last4})" if key else ""),
        ("Request", refusal.request_id),
    ]
    if key is not None:
        facts.append(("Limits over this key", link(reverse("key_limits", args=[key.id]), "as they stand now")))
    return [(name, value) for name, value in facts if value]


def _metered(request_id: str) -> tuple[RequestRow | None, str | None]:
    try:
        return usage_reports.request_row(request_id=request_id), None
    except ClickHouseUnavailable:
        return None, "No refusal of this request is known, and accepted requests cannot be read right now."


def bare(text: str) -> str | None:
    """The request id in what a person pasted: with the prefix of a completion or without; None where there is none."""
    for prefix in PREFIXES:
        text = text.removeprefix(prefix)
    try:
        return str(UUID(text))
    except ValueError:
        return None


async def _find(request_id: str, tenant_ids: list[str]) -> Refusal | None:
    async with asyncio.timeout(READ_SECONDS):
        redis = open_redis(environment().redis)
        try:
            return await Refusals(redis, clock=SystemClock()).find(request_id, tenant_ids=tenant_ids)
        finally:
            await redis.aclose(close_connection_pool=True)


async def _latest(tenant_id: str) -> list[Refusal]:
    async with asyncio.timeout(READ_SECONDS):
        redis = open_redis(environment().redis)
        try:
            return await Refusals(redis, clock=SystemClock()).latest(tenant_id=tenant_id, limit=SHOWN)
        finally:
            await redis.aclose(close_connection_pool=True)
