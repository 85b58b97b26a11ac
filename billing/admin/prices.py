"""The price book in the admin."""

from decimal import Decimal
from typing import Any

from django import forms
from django.contrib import admin
from django.db import models
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from unfold.admin import ModelAdmin
from unfold.decorators import action
from unfold.widgets import UnfoldAdminDecimalFieldWidget, UnfoldAdminSplitDateTimeWidget

from billing.admin.amounts import money_column, percent, percent_column
from billing.admin.base import ReadOnlyInline, StateFilter, VersionAdmin, actor_of
from billing.models import ContractTerms, PriceList, PriceVersion
from billing.services import supersede_price


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


class ListedPrices(ReadOnlyInline):
    """The prices of a list, those that are over too. They are added and superseded on their own page."""

    model = PriceVersion
    fields = readonly_fields = [
        "model", "service_class", "meter", "price", "valid_from", "valid_to", "approved_by",
    ]  # fmt: skip
    price = money_column("per_million", title="per million tokens")


@admin.register(PriceList)
class PriceListAdmin(ModelAdmin):
    list_display = ["name", "description", "plan_names", "price_count"]
    search_fields = ["name"]
    empty_hint = "Without any, tenants pay their own prices or what everybody pays. Add one, then prices for it."
    fields = ["name", "description"]
    inlines = [ListedPrices]

    def get_queryset(self, request: HttpRequest) -> QuerySet[PriceList]:
        found: QuerySet[PriceList] = super().get_queryset(request).prefetch_related("plans")
        now = timezone.now()
        in_force = (
            models.Q(prices__valid_from__lte=now)
            & ~models.Q(prices__approved_by="")
            & (models.Q(prices__valid_to=None) | models.Q(prices__valid_to__gt=now))
        )
        return found.annotate(prices_now=models.Count("prices", filter=in_force))

    @admin.display(description="plans")
    def plan_names(self, price_list: Any) -> str:
        return ", ".join(plan.name for plan in price_list.plans.all()) or "none"

    @admin.display(description="prices in force", ordering="prices_now")
    def price_count(self, price_list: Any) -> int:
        return int(price_list.prices_now)


@admin.register(PriceVersion)
class PriceVersionAdmin(VersionAdmin):
    list_display = [
        "model",
        "service_class",
        "meter",
        "price",
        "whose",
        "valid_from",
        "valid_until",
        "state",
        "agreed",
    ]
    list_filter = [StateFilter, "price_list", "service_class", "meter", "currency", "model"]
    list_select_related = ["tenant", "price_list"]
    search_fields = ["model", "tenant__name", "price_list__name"]
    fields = [
        "tenant", "price_list", "model", "service_class", "meter", "per_million", "currency", "valid_from", "valid_to",
    ]  # fmt: skip
    autocomplete_fields: list[str] = []
    empty_hint = "Models without a price cannot be asked for. Add one; it holds once a second person approves it."

    shown = ("model", "service_class", "meter", "price", "whose")
    price = money_column("per_million", title="per million tokens")
    actions_detail = ["supersede", "approve", "withdraw"]

    @admin.display(description="for", ordering="tenant__name")
    def whose(self, price: PriceVersion) -> str:
        if price.tenant is not None:
            return str(price.tenant)
        return f"list {price.price_list}" if price.price_list is not None else "everybody else"

    @action(description="Supersede", url_path="supersede", icon="swap_horiz", permissions=["act"])
    def supersede(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Propose what follows this price; it holds once a second person approves it."""

        def run(version: Any, data: dict[str, Any]) -> str:
            now = timezone.now()
            new = supersede_price(
                price_id=str(version.pk),
                per_million=data["per_million"],
                valid_from=data["valid_from"] or now,
                now=now,
                actor=actor_of(request),
            )
            return f"Proposed from {new.valid_from:%Y-%m-%d %H:%M} UTC: {new}. Somebody else approves it."

        return self.asked(request, object_id, title="Supersede", form=SupersedeForm, run=run)


@admin.register(ContractTerms)
class ContractTermsAdmin(VersionAdmin):
    list_display = [
        "tenant", "discount", "shown_commitment", "shown_fee", "shown_minimum", "valid_from", "valid_until", "state",
        "agreed",
    ]  # fmt: skip
    empty_hint = "Without any, a tenant pays for its usage and no more. Add discounts, a commitment or a minimum."

    shown = (
        "tenant", "currency", "tiers_read", "discount", "shown_commitment", "shown_fee", "shown_minimum",
        "payment_days",
    )  # fmt: skip
    discount = percent_column("discount_ppm", title="discount")
    shown_commitment = money_column("commitment", title="usage committed to")
    shown_fee = money_column("commitment_fee", title="for")
    shown_minimum = money_column("minimum", title="at least")
    list_filter = [StateFilter, "currency"]
    list_select_related = ["tenant"]
    search_fields = ["tenant__name"]
    fields = [
        "tenant", "currency", "tiers", "discount_ppm", "commitment", "commitment_fee", "minimum", "payment_days",
        "valid_from", "valid_to",
    ]  # fmt: skip

    @admin.display(description="tiers")
    def tiers_read(self, terms: ContractTerms) -> SafeString:
        """What is taken off above so many tokens of a period."""
        rows = [
            (tier["model"] or "every model", tier["meter"], f"{tier['above_tokens']:,}", percent(tier["discount_ppm"]))
            for tier in terms.tiers
        ]
        if not rows:
            return format_html("{}", "none")
        return format_html(
            '<table class="weir-table"><tr><th>Model</th><th>Meter</th><th>Above tokens</th><th>Taken off</th></tr>{}'
            "</table>",
            format_html_join("", "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>", rows),
        )
