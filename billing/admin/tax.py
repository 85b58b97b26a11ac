"""Tax rates, the issuer and the customers' addresses in the admin."""

from django.contrib import admin
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from billing.admin.base import StateFilter, VersionAdmin
from billing.models import BillingProfile, Issuer, TaxRate


@admin.register(TaxRate)
class TaxRateAdmin(VersionAdmin):
    list_display = ["country", "rate_ppm", "valid_from", "valid_to", "state", "approved_by"]
    list_filter = [StateFilter, "country"]
    fields = ["country", "rate_ppm", "valid_from", "valid_to"]


@admin.register(BillingProfile)
class BillingProfileAdmin(ModelAdmin):
    list_display = ["tenant", "legal_name", "country", "tax_id"]
    list_select_related = ["tenant"]
    search_fields = ["tenant__name", "legal_name", "tax_id"]


@admin.register(Issuer)
class IssuerAdmin(ModelAdmin):
    """One row; issued documents keep what it said when they were issued."""

    list_display = ["legal_name", "country", "tax_id", "series"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return super().has_add_permission(request) and not Issuer.objects.exists()

    def has_delete_permission(self, request: HttpRequest, obj: Issuer | None = None) -> bool:
        return False
