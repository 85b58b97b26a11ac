"""The console's first page: what needs a person, what stands where, and every page with what it is for.

Called by django-unfold for `/admin/`. Shows nobody what she may not open. A fixed number of queries and Redis calls;
where Redis does not answer, the page says so and shows the rest.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from axes.models import AccessAttempt
from django.conf import settings
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from redis.exceptions import RedisError

from billing.models import (
    Adjustment,
    BillingJob,
    BillingPeriod,
    ContractTerms,
    DocumentState,
    Invoice,
    JobState,
    PeriodState,
    PriceVersion,
    TaxRate,
)
from controlplane.dead_letters.reading import count as count_dead_letters
from controlplane.env import environment
from controlplane.models import ServedModel
from controlplane.navigation import GROUPS, Item, may_open
from controlplane.pages.engines import read_running
from stores.redis_blocking import blocking_redis
from tenants.models import ApiKey, Tenant, TenantState
from tenants.webhooks.models import DisabledReason, Endpoint

AWAY = "Redis does not answer: which workers are ready and what was set aside cannot be shown. Requests are refused."


@dataclass(frozen=True, slots=True)
class Concern:
    """Something that waits for a person. `one` and `many` say it, `many` with the number."""

    permission: str
    count: Callable[[datetime], int]
    one: str
    many: str
    route: str
    query: str = ""


CONCERNS = (
    Concern(
        "billing.view_priceversion",
        lambda now: PriceVersion.objects.filter(approved_by="", withdrawn_by="").count(),
        "A price waits for a second person's approval.",
        "{} prices wait for a second person's approval.",
        "admin:billing_priceversion_changelist",
        "?state=proposed",
    ),
    Concern(
        "billing.view_contractterms",
        lambda now: ContractTerms.objects.filter(approved_by="", withdrawn_by="").count(),
        "Contract terms wait for a second person's approval.",
        "{} contract terms wait for a second person's approval.",
        "admin:billing_contractterms_changelist",
        "?state=proposed",
    ),
    Concern(
        "billing.view_taxrate",
        lambda now: TaxRate.objects.filter(approved_by="", withdrawn_by="").count(),
        "A tax rate waits for a second person's approval.",
        "{} tax rates wait for a second person's approval.",
        "admin:billing_taxrate_changelist",
        "?state=proposed",
    ),
    Concern(
        "billing.view_adjustment",
        lambda now: Adjustment.objects.filter(approved_by="").count(),
        "An adjustment waits for a second person's approval.",
        "{} adjustments wait for a second person's approval.",
        "admin:billing_adjustment_changelist",
    ),
    Concern(
        "billing.view_billingperiod",
        lambda now: BillingPeriod.objects.filter(state=PeriodState.DRAFT, ends_at__lt=now).count(),
        "A billing period is over and not sealed.",
        "{} billing periods are over and not sealed.",
        "admin:billing_billingperiod_changelist",
        "?state__exact=draft",
    ),
    Concern(
        "billing.view_invoice",
        lambda now: Invoice.objects.filter(state=DocumentState.ISSUED, due_at__lt=now).count(),
        "A document is overdue.",
        "{} documents are overdue.",
        "admin:billing_invoice_changelist",
        "?state__exact=issued",
    ),
    Concern(
        "billing.view_billingjob",
        lambda now: BillingJob.objects.filter(state=JobState.FAILED).count(),
        "A billing job has failed.",
        "{} billing jobs have failed.",
        "admin:billing_billingjob_changelist",
        "?state__exact=failed",
    ),
    Concern(
        "webhooks.view_endpoint",
        lambda now: (
            Endpoint.objects.filter(enabled=False, deleted_at=None)
            .exclude(disabled_reason=DisabledReason.PERSON)
            .count()
        ),
        "A webhook was switched off because it failed.",
        "{} webhooks were switched off because they failed.",
        "admin:webhooks_endpoint_changelist",
        "?enabled__exact=0",
    ),
    Concern(
        "axes.view_accessattempt",
        lambda now: AccessAttempt.objects.filter(
            failures_since_start__gte=settings.AXES_FAILURE_LIMIT, attempt_time__gt=now - settings.AXES_COOLOFF_TIME
        ).count(),
        "An account is locked after wrong passwords or codes.",
        "{} accounts are locked after wrong passwords or codes.",
        "admin:axes_accessattempt_changelist",
    ),
)


def dashboard(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """The page's context. Called by django-unfold."""
    may = request.user.has_perm
    glance, concerns, problem = _of_redis(may)
    if may("tenants.view_tenant"):
        number = Tenant.objects.filter(state=TenantState.ACTIVE).count()
        glance.append(("Active tenants", f"{number:,}", reverse("admin:tenants_tenant_changelist")))
    if may("tenants.view_apikey"):
        number = ApiKey.objects.filter(revoked_at=None, expired_at=None).count()
        glance.append(("Live API keys", f"{number:,}", reverse("admin:tenants_apikey_changelist")))
    now = timezone.now()
    concerns += [said for concern in CONCERNS if may(concern.permission) and (said := _said(concern, now))]
    context |= {
        "title": "Home",
        "glance": glance,
        "concerns": concerns,
        "problem": problem,
        "groups": [(group, links) for group, members in GROUPS.items() if (links := _links(members, request))],
    }
    return context


def _said(concern: Concern, now: datetime) -> tuple[str, str] | None:
    number = concern.count(now)
    if not number:
        return None
    said = concern.one if number == 1 else concern.many.format(f"{number:,}")
    return said, reverse(concern.route) + concern.query


def _links(members: tuple[Item, ...], request: HttpRequest) -> list[dict[str, str]]:
    return [
        {"name": item.name, "icon": item.icon, "link": item.link, "hint": item.hint}
        for item in members
        if may_open(item, request)
    ]


def _of_redis(may: Callable[[str], bool]) -> tuple[list[tuple[str, str, str]], list[tuple[str, str]], str | None]:
    """Workers that are ready, models that nobody serves, dead letters: what is known of them right now."""
    glance: list[tuple[str, str, str]] = []
    concerns: list[tuple[str, str]] = []
    try:
        if may("controlplane.open_engines"):
            running, address = read_running(), reverse("engines")
            glance.append(("Workers ready", f"{running.ready} of {len(running.beats)}", address))
            idle = ServedModel.objects.filter(enabled=True).exclude(pool__in=running.pools_served)
            concerns += [(f"No worker serves {model.name}: its requests are refused.", address) for model in idle]
        if may("controlplane.open_dead_letters"):
            number = count_dead_letters(blocking_redis(environment().redis))
            said = "A request was set aside" if number == 1 else f"{number:,} requests were set aside"
            concerns += [(f"{said}: see what killed or lost them.", reverse("dead_letters"))] if number else []
    except (RedisError, OSError):
        return glance, concerns, AWAY
    return glance, concerns, None
