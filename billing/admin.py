"""Money in the admin: prices are added, superseded and approved, never edited; the ledger is read only."""

from datetime import datetime
from decimal import Decimal
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db import models
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from unfold.admin import ModelAdmin, TabularInline
from unfold.decorators import action
from unfold.widgets import UnfoldAdminDecimalFieldWidget, UnfoldAdminSplitDateTimeWidget

from billing.models import LedgerAccount, LedgerEntry, LedgerTransaction, PriceList, PriceVersion, UsagePosting
from billing.rating.prices import PriceError
from billing.services import PriceChangeRefused, approve_price, supersede_price


class SupersedeForm(forms.Form):
    """The new price and when it begins."""

    per_million = forms.DecimalField(
        label="New price per million tokens",
        min_value=Decimal(0),
        max_digits=10,
        decimal_places=3,
        widget=UnfoldAdminDecimalFieldWidget(),
    )
    valid_from = forms.SplitDateTimeField(
        label="Holds from (UTC)", required=False, help_text="Empty = now.", widget=UnfoldAdminSplitDateTimeWidget()
    )


class ReadOnlyInline(TabularInline):  # type: ignore[misc]
    """Rows that are shown and never changed here."""

    extra = 0
    can_delete = False

    def has_add_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False


class ListedPrices(ReadOnlyInline):
    """The prices of a list, those that are over too. They are added and superseded on their own page."""

    model = PriceVersion
    fields = readonly_fields = ["model", "meter", "per_million", "currency", "valid_from", "valid_to"]


@admin.register(PriceList)
class PriceListAdmin(ModelAdmin):  # type: ignore[misc]
    list_display = ["name", "description", "plan_names", "price_count"]
    search_fields = ["name"]
    fields = ["name", "description"]
    inlines = [ListedPrices]

    def get_queryset(self, request: HttpRequest) -> QuerySet[PriceList]:
        found: QuerySet[PriceList] = super().get_queryset(request).prefetch_related("plans")
        now = timezone.now()
        in_force = models.Q(prices__valid_from__lte=now) & (
            models.Q(prices__valid_to=None) | models.Q(prices__valid_to__gt=now)
        )
        return found.annotate(prices_now=models.Count("prices", filter=in_force))

    @admin.display(description="plans")
    def plan_names(self, price_list: Any) -> str:
        return ", ".join(plan.name for plan in price_list.plans.all()) or "none"

    @admin.display(description="prices in force", ordering="prices_now")
    def price_count(self, price_list: Any) -> int:
        return int(price_list.prices_now)


@admin.register(PriceVersion)
class PriceVersionAdmin(ModelAdmin):  # type: ignore[misc]  # unfold has no types
    list_display = [
        "model",
        "meter",
        "per_million",
        "currency",
        "whose",
        "valid_from",
        "valid_to",
        "approved_by",
    ]
    list_filter = ["price_list", "meter", "currency", "model"]
    list_select_related = ["tenant", "price_list"]
    search_fields = ["model", "tenant__name", "price_list__name"]
    fields = ["tenant", "price_list", "model", "meter", "per_million", "currency", "valid_from", "valid_to"]
    autocomplete_fields: list[str] = []
    actions_detail = ["supersede", "approve"]

    @admin.display(description="for", ordering="tenant__name")
    def whose(self, price: PriceVersion) -> str:
        if price.tenant is not None:
            return str(price.tenant)
        return f"list {price.price_list}" if price.price_list is not None else "everybody else"

    def has_change_permission(self, request: HttpRequest, obj: PriceVersion | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: PriceVersion | None = None) -> bool:
        return False

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        return {"valid_from": timezone.now(), "currency": "USD"}

    def save_model(self, request: HttpRequest, obj: PriceVersion, form: Any, change: bool) -> None:  # noqa: FBT001
        obj.created_by = _actor(request)
        super().save_model(request, obj, form, change)

    @action(description="Supersede", url_path="supersede", icon="swap_horiz")  # type: ignore[untyped-decorator]
    def supersede(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask for the new price, then end this version and let the new one follow."""
        price = self.get_object(request, object_id)
        if price is None or not self.has_add_permission(request):
            return redirect(reverse("admin:billing_priceversion_changelist"))
        form = SupersedeForm(request.POST if request.method == "POST" else None)
        if form.is_valid() and self._superseded(request, object_id, form.cleaned_data):
            return redirect(reverse("admin:billing_priceversion_changelist"))
        context = {
            **self.admin_site.each_context(request),
            "title": f"Supersede: {price}",
            "form": form,
            "opts": self.opts,
            "price": price,
        }
        return TemplateResponse(request, "billing/supersede.html", context)

    @action(description="Approve", url_path="approve", icon="verified")  # type: ignore[untyped-decorator]
    def approve(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Record the second person. Only by POST: the page asks first."""
        price = self.get_object(request, object_id)
        if price is None or not self.has_add_permission(request):
            return redirect(reverse("admin:billing_priceversion_changelist"))
        if request.method == "POST":
            try:
                approve_price(price_id=object_id, actor=_actor(request))
                messages.success(request, "Approved.")
            except PriceChangeRefused as error:
                messages.error(request, str(error))
            return redirect(reverse("admin:billing_priceversion_changelist"))
        context = {
            **self.admin_site.each_context(request),
            "title": f"Approve: {price}",
            "form": forms.Form(),
            "opts": self.opts,
            "price": price,
        }
        return TemplateResponse(request, "billing/supersede.html", context)

    def _superseded(self, request: HttpRequest, price_id: str, data: dict[str, Any]) -> bool:
        now: datetime = timezone.now()
        try:
            new = supersede_price(
                price_id=price_id,
                per_million=data["per_million"],
                valid_from=data["valid_from"] or now,
                now=now,
                actor=_actor(request),
            )
        except (PriceChangeRefused, PriceError) as error:
            messages.error(request, str(error))
            return False
        messages.success(request, f"From {new.valid_from:%Y-%m-%d %H:%M} UTC: {new}.")
        return True


class ReadOnly(ModelAdmin):  # type: ignore[misc]
    """A page to look at: the database refuses changes too."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False


class EntryInline(ReadOnlyInline):
    model = LedgerEntry
    fields = ["account", "amount"]
    readonly_fields = ["account", "amount"]


@admin.register(LedgerTransaction)
class LedgerTransactionAdmin(ReadOnly):
    list_display = ["posted_at", "description", "currency", "id"]
    list_filter = ["currency"]
    search_fields = ["idempotency_key", "id"]
    inlines = [EntryInline]

    def get_queryset(self, request: HttpRequest) -> QuerySet[LedgerTransaction]:
        found: QuerySet[LedgerTransaction] = super().get_queryset(request).prefetch_related("entries__account")
        return found


@admin.register(LedgerAccount)
class LedgerAccountAdmin(ReadOnly):
    list_display = ["kind", "tenant", "currency", "balance"]
    list_filter = ["kind", "currency"]
    list_select_related = ["tenant"]
    search_fields = ["tenant__name"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[LedgerAccount]:
        found: QuerySet[LedgerAccount] = super().get_queryset(request).annotate(total=models.Sum("entries__amount"))
        return found

    @admin.display(description="Balance (debit positive)", ordering="total")
    def balance(self, account: Any) -> str:
        return f"{account.total or Decimal(0):.9f}"


@admin.register(UsagePosting)
class UsagePostingAdmin(ReadOnly):
    list_display = ["request_id", "tenant_id", "amount", "currency", "billed_at"]
    list_filter = ["currency"]
    search_fields = ["=request_id", "=tenant_id"]
    show_full_result_count = False


def _actor(request: HttpRequest) -> str:
    return f"user:{request.user.get_username()}"
