"""Periods in the admin: compared, waived with a reason, sealed; each by POST after being asked.

A gateway serves these pages and has no receipt key: what signs is asked for as a job.
"""

from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet, Sum
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from redis.exceptions import RedisError
from unfold.decorators import action
from unfold.widgets import UnfoldAdminTextareaWidget

from billing.admin.amounts import count_column, per_million_column
from billing.admin.asking import asked
from billing.admin.base import ReadOnly, ReadOnlyInline, actor_of
from billing.closing.close import CloseRefused, check_period, waive_gaps
from billing.invoicing.issue import InvoiceRefused, issue_document
from billing.jobs import ask
from billing.ledger.journal import LedgerConflict
from billing.management.composition import gather_evidence
from billing.models import BillingPeriod, CloseGap, CloseWaiver, JobKind, PeriodUsage
from stores.clickhouse import ClickHouseError

_TOLD = (CloseRefused, InvoiceRefused, LedgerConflict, ClickHouseError, RedisError, OSError)


class WaiveForm(forms.Form):
    """Why these gaps are accepted."""

    reason = forms.CharField(max_length=2_000, widget=UnfoldAdminTextareaWidget())


class GapInline(ReadOnlyInline):
    model = CloseGap
    fields = readonly_fields = ["kind", "at", "request_id", "detail", "tokens"]


class WaiverInline(ReadOnlyInline):
    model = CloseWaiver
    fields = readonly_fields = ["signed_at", "signed_by", "gaps", "reason"]


class UsageInline(ReadOnlyInline):
    model = PeriodUsage
    fields = readonly_fields = ["revision", "model", "service_class", "meter", "count", "price", "price_id"]

    count = count_column("tokens")
    price = per_million_column("unit_nano", currency="period__currency")


@admin.register(BillingPeriod)
class BillingPeriodAdmin(ReadOnly):
    list_display = ["tenant", "month", "zone", "state", "unexplained", "checked_at", "sealed_at", "sealed_by"]
    list_filter = ["state", "month"]
    list_select_related = ["tenant"]
    search_fields = ["tenant__name", "month"]
    fields = readonly_fields = [
        "tenant", "of_month", "zone", "currency", "starts_at", "ends_at", "state", "checked_at", "sealed_at",
        "sealed_by",
    ]  # fmt: skip
    inlines = [GapInline, WaiverInline, UsageInline]
    actions_detail = ["compare", "seal", "issue", {"title": "More", "items": ["waive", "correct"]}]
    empty_hint = (
        "A tenant's month is opened and closed here once it is over for a day, by an hourly job, or at once by "
        "`manage.py close_period`."
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[BillingPeriod]:
        found: QuerySet[BillingPeriod] = super().get_queryset(request)
        return found.annotate(open_tokens=Sum("gaps__tokens"))

    @admin.display(description="month")
    def of_month(self, period: BillingPeriod) -> str:
        return period.month

    @admin.display(description="unexplained tokens")
    def unexplained(self, period: Any) -> str:
        return "not compared yet" if period.checked_at is None else f"{period.open_tokens or 0:,}"

    @action(description="Compare the books", url_path="compare", icon="balance", permissions=["act"])
    def compare(self, request: HttpRequest, object_id: str) -> HttpResponse:
        def run(period: BillingPeriod, data: dict[str, Any]) -> str:
            found = check_period(period, gather_evidence(), now=timezone.now())
            return f"{len(found.gaps)} gaps, unexplained tokens: {sum(gap.tokens for gap in found.gaps)}."

        return asked(self, request, object_id, title="Compare the books of", form=forms.Form, run=run, errors=_TOLD)

    @action(description="Waive the gaps", url_path="waive", icon="signature", permissions=["act"])
    def waive(self, request: HttpRequest, object_id: str) -> HttpResponse:
        def run(period: BillingPeriod, data: dict[str, Any]) -> str:
            waiver = waive_gaps(period, reason=data["reason"], actor=actor_of(request), now=timezone.now())
            return f"Signed for {waiver.gaps} gaps."

        return asked(self, request, object_id, title="Waive the gaps of", form=WaiveForm, run=run, errors=_TOLD)

    @action(description="Seal", url_path="seal", icon="lock", permissions=["act"])
    def seal(self, request: HttpRequest, object_id: str) -> HttpResponse:
        def run(period: BillingPeriod, data: dict[str, Any]) -> str:
            ask(kind=JobKind.CLOSE, subject=str(period.pk), actor=actor_of(request), now=timezone.now())
            return "Asked for: it is sealed as a job, when its books agree. See Jobs."

        return asked(self, request, object_id, title="Seal", form=forms.Form, run=run, errors=_TOLD)

    @action(description="Issue a document", url_path="issue", icon="request_quote", permissions=["act"])
    def issue(self, request: HttpRequest, object_id: str) -> HttpResponse:
        def run(period: BillingPeriod, data: dict[str, Any]) -> str:
            made = issue_document(period_id=period.pk, actor=actor_of(request), now=timezone.now())
            return "Its documents are right as they are." if made is None else f"Issued {made}."

        return asked(self, request, object_id, title="Issue a document of", form=forms.Form, run=run, errors=_TOLD)

    @action(description="Look for late usage", url_path="correct", icon="history_edu", permissions=["act"])
    def correct(self, request: HttpRequest, object_id: str) -> HttpResponse:
        def run(period: BillingPeriod, data: dict[str, Any]) -> str:
            ask(kind=JobKind.CORRECT, subject=str(period.pk), actor=actor_of(request), now=timezone.now())
            return "Asked for: what came late is stored as a revision, by a job. See Jobs."

        return asked(self, request, object_id, title="Look for late usage of", form=forms.Form, run=run, errors=_TOLD)
