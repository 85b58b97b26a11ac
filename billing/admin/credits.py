"""Credit in the admin: granted once by a form, then for looking; alerts are edited freely."""

from datetime import datetime
from decimal import Decimal
from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet, Sum
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.utils import timezone
from unfold.admin import ModelAdmin

from billing.admin.amounts import money, money_column
from billing.admin.base import ReadOnly, ReadOnlyInline, actor_of
from billing.ledger.credits import grant_credit
from billing.models import CreditAlert, CreditGrant, CreditMovement


class MovementInline(ReadOnlyInline):
    model = CreditMovement
    fields = readonly_fields = ["moved_at", "kind", "shown_amount"]
    shown_amount = money_column("amount", currency="grant__currency")


class CreditGrantForm(forms.ModelForm):  # type: ignore[type-arg]
    """What the ledger would refuse is said on the form."""

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        ends, amount = data.get("expires_at"), data.get("amount")
        if ends is not None and ends <= timezone.now():
            self.add_error("expires_at", "Credit expires later than it is granted.")
        if amount is not None and amount <= 0:
            self.add_error("amount", "Credit is more than nothing.")
        return data


@admin.register(CreditGrant)
class CreditGrantAdmin(ReadOnly):
    """Adding posts to the ledger, under a key of its own."""

    form = CreditGrantForm
    list_display = ["granted_at", "tenant", "shown_amount", "left", "paid", "expires", "reason", "created_by"]
    list_filter = ["currency", "paid"]
    list_select_related = ["tenant"]
    search_fields = ["tenant__name", "reason"]
    fields = ["tenant", "currency", "amount", "paid", "expires_at", "reason"]
    inlines = [MovementInline]
    empty_hint = "Top-ups and gifts: add one here, or by `manage.py credit`."

    shown_amount = money_column("amount")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("billing.add_creditgrant"))

    def get_queryset(self, request: HttpRequest) -> QuerySet[CreditGrant]:
        found: QuerySet[CreditGrant] = super().get_queryset(request)
        return found.annotate(used=Coalesce(Sum("movements__amount"), Decimal(0)))

    @admin.display(description="left")
    def left(self, grant: Any) -> str:
        return money(grant.amount - grant.used, grant.currency)

    @admin.display(description="expires", ordering="expires_at", empty_value="never")
    def expires(self, grant: CreditGrant) -> datetime | None:
        return grant.expires_at

    def save_model(self, request: HttpRequest, obj: CreditGrant, form: Any, change: bool) -> None:  # noqa: FBT001
        grant, _ = grant_credit(
            key=f"admin:{obj.pk}",
            tenant_id=obj.tenant_id,
            currency=obj.currency,
            amount=obj.amount,
            paid=obj.paid,
            reason=obj.reason,
            actor=actor_of(request),
            at=timezone.now(),
            expires_at=obj.expires_at,
        )
        obj.pk, obj.granted_at = grant.pk, grant.granted_at


@admin.register(CreditAlert)
class CreditAlertAdmin(ModelAdmin):
    list_display = ["tenant", "shown_below", "fired"]
    list_select_related = ["tenant"]
    search_fields = ["tenant__name"]
    empty_hint = "Add one to have a tenant told, as `credit.low`, when its credit falls below an amount."

    shown_below = money_column("below", title="told below")

    @admin.display(description="told at", ordering="fired_at", empty_value="not yet")
    def fired(self, alert: CreditAlert) -> datetime | None:
        return alert.fired_at
