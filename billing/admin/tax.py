"""Tax rates, the issuer and the customers' addresses in the admin."""

from django.contrib import admin
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from billing.admin.amounts import percent_column
from billing.admin.base import StateFilter, VersionAdmin
from billing.models import BillingProfile, Issuer, TaxRate


@admin.register(TaxRate)
class TaxRateAdmin(VersionAdmin):
    list_display = ["country", "rate", "valid_from", "valid_until", "state", "agreed"]
    empty_hint = "The standard rate of each country in which the issuer is registered. Without one, nothing is issued."
    shown = ("country", "rate")
    rate = percent_column("rate_ppm", title="rate")
    list_filter = [StateFilter, "country"]
    fields = ["country", "rate_ppm", "valid_from", "valid_to"]


@admin.register(BillingProfile)
class BillingProfileAdmin(ModelAdmin):
    list_display = ["tenant", "legal_name", "country", "tax_id"]
    list_select_related = ["tenant"]
    search_fields = ["tenant__name", "legal_name", "tax_id"]
    empty_hint = "Whom a tenant's invoices go to. Without one, its documents cannot be issued."


@admin.register(Issuer)
class IssuerAdmin(ModelAdmin):
    """One row; issued documents keep what it said when they were issued."""

    list_display = ["legal_name", "country", "tax_id", "series"]
    empty_hint = "Who sells, as invoices print it. Without it, nothing is issued."

    def has_add_permission(self, request: HttpRequest) -> bool:
        return super().has_add_permission(request) and not Issuer.objects.exists()

    def has_delete_permission(self, request: HttpRequest, obj: Issuer | None = None) -> bool:
        return False
