"""Periods in the admin: compared, waived with a reason, sealed; each by POST after being asked."""

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet, Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from redis.exceptions import RedisError
from unfold.decorators import action
from unfold.widgets import UnfoldAdminTextareaWidget

from billing.admin.base import ReadOnly, ReadOnlyInline, actor_of
from billing.closing.close import CloseRefused, check_period, correct_period, seal_period, waive_gaps
from billing.management.composition import gather_evidence
from billing.models import BillingPeriod, CloseGap, CloseWaiver, PeriodUsage
from stores.clickhouse import ClickHouseError


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
    fields = readonly_fields = ["revision", "model", "service_class", "meter", "tokens", "unit_nano", "price_id"]


@admin.register(BillingPeriod)
class BillingPeriodAdmin(ReadOnly):
    list_display = ["tenant", "month", "zone", "state", "unexplained", "checked_at", "sealed_at", "sealed_by"]
    list_filter = ["state", "month"]
    list_select_related = ["tenant"]
    search_fields = ["tenant__name", "month"]
    fields = readonly_fields = [
        "tenant", "month", "zone", "currency", "starts_at", "ends_at", "state", "checked_at", "sealed_at", "sealed_by",
    ]  # fmt: skip
    inlines = [GapInline, WaiverInline, UsageInline]
    actions_detail = ["compare", "waive", "seal", "correct"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[BillingPeriod]:
        found: QuerySet[BillingPeriod] = super().get_queryset(request)
        return found.annotate(open_tokens=Sum("gaps__tokens"))

    @admin.display(description="unexplained tokens")
    def unexplained(self, period: Any) -> str:
        return "not compared yet" if period.checked_at is None else str(period.open_tokens or 0)

    @action(description="Compare the books", url_path="compare", icon="balance")
    def compare(self, request: HttpRequest, object_id: str) -> HttpResponse:
        def run(period: BillingPeriod, data: dict[str, Any]) -> str:
            found = check_period(period, gather_evidence(), now=timezone.now())
            return f"{len(found.gaps)} gaps, unexplained tokens: {sum(gap.tokens for gap in found.gaps)}."

        return self._asked(request, object_id, title="Compare the books of", form=forms.Form, run=run)

    @action(description="Waive the gaps", url_path="waive", icon="signature")
    def waive(self, request: HttpRequest, object_id: str) -> HttpResponse:
        def run(period: BillingPeriod, data: dict[str, Any]) -> str:
            waiver = waive_gaps(period, reason=data["reason"], actor=actor_of(request), now=timezone.now())
            return f"Signed for {waiver.gaps} gaps."

        return self._asked(request, object_id, title="Waive the gaps of", form=WaiveForm, run=run)

    @action(description="Seal", url_path="seal", icon="lock")
    def seal(self, request: HttpRequest, object_id: str) -> HttpResponse:
        def run(period: BillingPeriod, data: dict[str, Any]) -> str:
            seal_period(period, gather_evidence(), actor=actor_of(request), now=timezone.now())
            return "Sealed: late usage is a correction from now on."

        return self._asked(request, object_id, title="Seal", form=forms.Form, run=run)

    @action(description="Look for late usage", url_path="correct", icon="history_edu")
    def correct(self, request: HttpRequest, object_id: str) -> HttpResponse:
        def run(period: BillingPeriod, data: dict[str, Any]) -> str:
            revision = correct_period(period, gather_evidence(), now=timezone.now())
            return "Nothing has changed." if revision is None else f"Revision {revision} is stored."

        return self._asked(request, object_id, title="Look for late usage of", form=forms.Form, run=run)

    def _asked(
        self,
        request: HttpRequest,
        object_id: str,
        *,
        title: str,
        form: type[forms.Form],
        run: Callable[[BillingPeriod, dict[str, Any]], str],
    ) -> HttpResponse:
        back = redirect(reverse("admin:billing_billingperiod_change", args=[object_id]))
        period = self.get_object(request, object_id)
        if period is None or not request.user.has_perm("billing.change_billingperiod"):
            return redirect(reverse("admin:billing_billingperiod_changelist"))
        filled = form(request.POST if request.method == "POST" else None)
        if filled.is_valid():
            try:
                messages.success(request, run(period, filled.cleaned_data))
            except (CloseRefused, ClickHouseError, RedisError, OSError) as error:
                messages.error(request, str(error))
            return back
        context = {
            **self.admin_site.each_context(request),
            "title": f"{title} {period}",
            "form": filled,
            "opts": self.opts,
        }
        return TemplateResponse(request, "billing/asked.html", context)
