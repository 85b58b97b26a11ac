"""The operator's pages in the admin: recent requests with their nine-step timeline, usage; and the error pages.

Reads only. What ClickHouse cannot answer right now is said on the page, never an error page.
"""

import datetime
import sys
from collections.abc import Callable
from typing import Any, TypeVar
from uuid import UUID

from django.contrib import admin
from django.contrib.auth.decorators import permission_required
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views import csrf, defaults
from django.views.decorators.cache import cache_control
from django.views.decorators.http import require_safe

from billing import selectors as usage_reports
from billing.clickhouse.shapes import RequestRow
from contracts.errors import InvalidRequest
from contracts.money import text_from_nano
from contracts.text import shown
from controlplane.database import AGAIN_SECONDS, is_away
from controlplane.pages.timeline import HEADERS, read_timeline
from stores.clickhouse import ClickHouseUnavailable
from tenants.models import Tenant

PAGE_ROWS = 50
USAGE_DAYS = 7
PATH_SHOWN_MAX = 200
# A weir: water held back at one height and let over evenly. In the console's own colour (unfold's primary).
ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" fill="#9810fa"/>'
    '<path d="M6 12h9v12M6 17h9M6 22h9" stroke="#fff" stroke-width="2.5" fill="none"/>'
    '<path d="M15 12c7 0 7 12 11 12" stroke="#e9d4ff" stroke-width="2.5" fill="none"/></svg>'
)

_AWAY_PAGE = (
    "<!doctype html><html lang=en><title>Weir</title><p>The database does not answer right now, or not in time. "
    "Nothing was changed; try again in a few seconds."
)

_UNREADABLE_PAGE = (
    "<!doctype html><html lang=en><title>Weir</title><p>This address, or the form sent to it, cannot be read here. "
    'Nothing was changed; begin again at the <a href="/admin/">console</a>.'
)

T = TypeVar("T")


@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """The root sends a person to the console; programs use /v1 and /api."""
    return redirect(reverse("admin:index"))


@require_safe
@cache_control(public=True, max_age=86_400)
def favicon(request: HttpRequest) -> HttpResponse:
    """The icon that every browser asks for by this name."""
    return HttpResponse(ICON, content_type="image/svg+xml")


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """400 for what Django itself refuses to read."""
    if _is_page(request):
        return HttpResponse(_UNREADABLE_PAGE, status=400)
    return _error("The request cannot be read.", status=400, kind="invalid_request_error", code="invalid_request")


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    """403 outside the management API's own views; a page of the console where somebody is in it."""
    if _is_page(request) and request.user.is_authenticated and request.user.is_staff:
        answer = _page(request, "forbidden", {"title": "Not for your role"})
        answer.status_code = 403
        return answer
    if _is_page(request):
        return defaults.permission_denied(request, exception)
    return _error("You may not do this.", status=403, kind="permission_error", code="permission_denied")


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """403 for a form that is not ours; outside the console no path takes forms at all."""
    if _is_page(request):
        return csrf.csrf_failure(request, reason)
    return _error("This path takes no such request.", status=403, kind="permission_error", code="permission_denied")


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """404 as the API speaks it, for any path that is not the console's."""
    path = shown(request.path, most=PATH_SHOWN_MAX)
    return _error(f"No such path: {path}", status=404, kind="invalid_request_error", code="not_found")


def server_error(request: HttpRequest) -> HttpResponse:
    """500 without a traceback; 503 where it is PostgreSQL that does not answer, or not in time."""
    if is_away(sys.exc_info()[1]):
        answer: HttpResponse
        if _is_page(request):
            answer = HttpResponse(_AWAY_PAGE, status=503)
        else:
            away = "The database does not answer right now."
            answer = _error(away, status=503, kind="service_unavailable_error", code="service_unavailable")
        answer["Retry-After"] = str(AGAIN_SECONDS)
        return answer
    return _error("Something went wrong on our side.", status=500, kind="api_error", code="internal_error")


def _is_page(request: HttpRequest) -> bool:
    """Whether a person looks at it: the console's own pages stay pages."""
    return request.path.startswith("/admin/")


@permission_required("controlplane.open_requests", raise_exception=True)
def recent_requests(request: HttpRequest) -> HttpResponse:
    """The newest metered requests, one page of fifty, for all tenants or one (`?tenant=`), older by `?before=`."""
    tenant = request.GET.get("tenant") or None
    before = request.GET.get("before") or None
    none: list[RequestRow] = []
    rows, problem = _answer(
        lambda: usage_reports.recent_requests(tenant_id=tenant, limit=PAGE_ROWS, before=before), empty=none
    )
    names = _tenant_names()
    table = {
        "headers": [
            "Admitted",
            "Request",
            "Tenant",
            "Model",
            "In / cached / out",
            "TTFT",
            "ITL",
            "Outcome",
            "Cost",
        ],
        "rows": [_request_cells(row, names) for row in rows],
    }
    context = {
        "title": "Recent requests",
        "table": table,
        "problem": problem,
        "tenants": sorted(names.items(), key=lambda item: item[1]),
        "tenant": tenant,
        "older": rows[-1].cursor if len(rows) == PAGE_ROWS else None,
    }
    return _page(request, "recent_requests", context)


@permission_required("controlplane.open_requests", raise_exception=True)
def request_timeline(request: HttpRequest, request_id: UUID) -> HttpResponse:
    """One request: its nine steps with the time of each, its counts and its bill."""
    row, problem = _answer(lambda: usage_reports.request_row(request_id=str(request_id)), empty=None)
    if row is None and problem is None:
        raise Http404
    context: dict[str, Any] = {"title": f"Request {request_id}", "problem": problem}
    if row is not None:
        timeline = read_timeline(row, may=request.user.has_perm)
        rules = {"headers": HEADERS, "rows": timeline.rules} if timeline.rules else None
        context |= {"facts": _facts(row), "steps": timeline.steps, "rules": rules}
    return _page(request, "request_timeline", context)


@permission_required("controlplane.open_usage", raise_exception=True)
def usage(request: HttpRequest) -> HttpResponse:
    """Seven days of tokens and money by tenant, and how fast the answers came."""
    end_ms = int(timezone.now().timestamp() * 1000)
    start_ms = end_ms - USAGE_DAYS * 86_400_000
    none: list[list[str]] = []
    tenants = Tenant.objects.order_by("name").only("id", "name", "currency")
    rows, problem = _answer(lambda: [_usage_cells(tenant, start_ms, end_ms) for tenant in tenants], empty=none)
    speed, speed_problem = _answer(
        lambda: usage_reports.latency_percentiles(start_ms=start_ms, end_ms=end_ms), empty=None
    )
    headers = ["Tenant", "Requests", "Input tokens", "of them cached", "Output tokens", "Cost"]
    context = {
        "title": "Usage",
        "days": USAGE_DAYS,
        "table": {"headers": headers, "rows": rows},
        "speed": speed,
        "problem": problem or speed_problem,
    }
    return _page(request, "usage", context)


def _page(request: HttpRequest, name: str, context: dict[str, Any]) -> HttpResponse:
    return render(request, f"controlplane/{name}.html", {**admin.site.each_context(request), **context})


def _answer(ask: Callable[[], T], *, empty: T) -> tuple[T, str | None]:
    """The report, or `empty` with a sentence when ClickHouse is away."""
    try:
        return ask(), None
    except ClickHouseUnavailable as error:
        return empty, f"Usage cannot be read right now: {error}. Nothing is lost; it waits in the stream."
    except InvalidRequest as error:
        return empty, error.message


def _tenant_names() -> dict[str, str]:
    return {str(key): name for key, name in Tenant.objects.order_by("name").values_list("id", "name")}


def _usage_cells(tenant: Tenant, start_ms: int, end_ms: int) -> list[str]:
    page = usage_reports.usage_buckets(tenant_id=str(tenant.id), start_ms=start_ms, end_ms=end_ms, limit=USAGE_DAYS + 1)
    results = [result for bucket in page.buckets for result in bucket.results]
    cost = sum(result.cost_nano for result in results)
    currency = next((result.currency for result in results), tenant.currency)  # nothing is nothing of something too
    totals = [
        sum(result.requests for result in results),
        sum(result.input_tokens for result in results),
        sum(result.cached_tokens for result in results),
        sum(result.output_tokens for result in results),
    ]
    return [tenant.name, *(f"{total:,}" for total in totals), f"{text_from_nano(cost)} {currency}"]


def _request_cells(row: RequestRow, names: dict[str, str]) -> list[str | SafeString]:
    link = reverse("request_timeline", args=[row.request_id])
    return [
        _moment(row.admitted_at_ms),
        format_html('<a class="text-primary-600 dark:text-primary-500" href="{}">…{}</a>', link, row.request_id[-12:]),
        names.get(row.tenant_id, row.tenant_id),
        row.model,
        f"{row.prompt_tokens:,} / {row.cached_tokens:,} / {row.completion_tokens:,}",
        f"{row.ttft_ms:,.0f} ms",
        f"{row.itl_ms:,.1f} ms",
        row.outcome + (f" ({row.error_code})" if row.error_code else ""),
        f"{row.cost_text} {row.currency}",
    ]


def _facts(row: RequestRow) -> list[tuple[str, str]]:
    facts = [
        ("Tenant", _tenant_names().get(row.tenant_id, row.tenant_id)),
        ("Model", row.model),
        ("Route", f"POST /v1/{row.endpoint}{', streamed' if row.stream else ''}"),
        ("Admitted", _moment(row.admitted_at_ms)),
        ("Outcome", row.outcome),
        ("Error", row.error_code),
        ("Finish reason", row.finish_reason + (": no more was affordable" if row.stopped_by else "")),
        ("Worker", f"{row.worker_id}, attempt {row.attempt}" if row.worker_id else "none: it was never claimed"),
        ("Prompt tokens", f"{row.prompt_tokens:,}, of them cached {row.cached_tokens:,}"),
        ("Completion tokens", f"{row.completion_tokens:,}, delivered {row.delivered_tokens:,}"),
        ("Cost", f"{row.cost_text} {row.currency}"),
        ("Price card", row.price_card_id),
        ("Evaluation log", row.log_key),
    ]
    return [(name, value) for name, value in facts if value]


def _moment(at_ms: int) -> str:
    return f"{datetime.datetime.fromtimestamp(at_ms / 1000, tz=datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"


def _error(message: str, *, status: int, kind: str, code: str) -> JsonResponse:
    param = {400: "request", 403: "Authorization", 404: "path"}.get(status)
    return JsonResponse({"error": {"message": message, "type": kind, "param": param, "code": code}}, status=status)
