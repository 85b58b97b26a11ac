"""Forms of the admin: what a person types, turned into what services take."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminSplitDateTimeWidget, UnfoldAdminTextInputWidget

from contracts.money import nano_from_decimal, text_from_nano
from contracts.tenancy import Metric, Scope
from tenants.limits.policy import is_money
from tenants.models import SETTABLE, ApiKey, KeyScope, LimitSetting, Plan, Project, Tenant, TenantState
from tenants.services import check_cap


def projects_by_tenant(*, required: bool = True) -> forms.ModelChoiceField[Project]:
    """Projects that may get something, as `tenant / project`, in one query."""
    live = Project.objects.filter(deleted_at=None).exclude(tenant__state=TenantState.CLOSED)
    return _OfTenant(queryset=live.select_related("tenant").order_by("tenant__name", "name"), required=required)


def keys_by_tenant() -> forms.ModelChoiceField[ApiKey]:
    """Keys that open something, as `tenant / key`, in one query."""
    live = ApiKey.objects.filter(revoked_at=None, expired_at=None).exclude(tenant__state=TenantState.CLOSED)
    return _OfTenant(queryset=live.select_related("tenant").order_by("tenant__name", "name"), required=False)


class _OfTenant(forms.ModelChoiceField):  # type: ignore[type-arg] # not generic when it runs
    """Two tenants have a project `default`: the tenant's name comes first."""

    widget = UnfoldAdminSelectWidget

    def label_from_instance(self, obj: Any) -> str:
        return f"{obj.tenant.name} / {obj}"


class PlanForm(forms.ModelForm):  # type: ignore[type-arg] # not generic when it runs
    """A plan's fields in words, with their units."""

    class Meta:
        model = Plan
        fields = [
            "name", "weight_milli", "queued_max", "max_tokens_default", "max_tokens_cap", "service_class",
            "price_list",
        ]  # fmt: skip
        labels = {
            "weight_milli": "Weight, in thousandths",
            "queued_max": "Requests waiting at once",
            "max_tokens_default": "Output tokens by default",
            "max_tokens_cap": "Output tokens at most",
            "service_class": "Class in a busy pool",
        }


class TenantForm(forms.ModelForm):  # type: ignore[type-arg] # not generic when it runs
    """A tenant's fields in words."""

    class Meta:
        model = Tenant
        fields = [
            "name", "plan", "currency", "timezone", "policy", "queued_max", "evaluation_log", "cut_to_affordable",
            "prepaid",
        ]  # fmt: skip
        labels = {
            "policy": "Guardrail policy",
            "queued_max": "Requests waiting at once",
            "cut_to_affordable": "Shorten answers to the budget",
        }


class LimitForm(forms.ModelForm):  # type: ignore[type-arg] # not generic when it runs
    """A cap as a person means it: money in units of the currency, everything else in whole numbers."""

    metric = forms.ChoiceField(choices=SETTABLE, widget=UnfoldAdminSelectWidget)
    cap = forms.DecimalField(
        min_value=Decimal(0),
        max_digits=18,
        decimal_places=9,
        widget=UnfoldAdminTextInputWidget,
        help_text="Whole requests or tokens; money in the tenant's currency (12.50). 0 blocks; no row = no limit.",
    )

    class Meta:
        model = LimitSetting
        fields = ["metric", "model", "cap"]
        widgets = {"model": UnfoldAdminTextInputWidget}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        row = self.instance
        if row.tenant is not None:
            money = f"money in {row.tenant.currency} (12.50)"
            self.fields["cap"].help_text = f"Whole requests or tokens; {money}. 0 blocks; no row = no limit."
        if row.metric and not row._state.adding and is_money(Metric(row.metric)):  # noqa: SLF001 - Django's own API
            self.initial["cap"] = Decimal(text_from_nano(row.cap))  # 100, not 1E+2

    def clean(self) -> dict[str, Any]:
        """The cap in the metric's own unit. Adds errors for what could not be counted exactly."""
        data = super().clean() or self.cleaned_data
        metric, cap = data.get("metric"), data.get("cap")
        if metric is None or cap is None:
            return data
        try:
            if is_money(Metric(metric)):
                data["cap"] = int(nano_from_decimal(cap))
            elif cap == cap.to_integral_value():
                data["cap"] = int(cap)
            else:
                raise ValidationError("A whole number, please.")
            check_cap(metric, data["cap"])
        except (ValidationError, ValueError) as error:
            message = error.messages[0] if isinstance(error, ValidationError) else str(error)
            self.add_error("cap", message)
        self.instance.scope = self.scope(data)
        return data

    def scope(self, data: dict[str, Any]) -> str:
        """Where the limit stands: by what the row belongs to."""
        if data.get("api_key"):
            return Scope.KEY.value
        return Scope.PROJECT.value if data.get("project") else Scope.TENANT.value


class LimitOwnerForm(LimitForm):
    """As LimitForm, with the owner to choose: one of plan, tenant, project, key."""

    class Meta(LimitForm.Meta):
        fields = ["plan", "tenant", "project", "api_key", "metric", "model", "cap"]

    def clean(self) -> dict[str, Any]:
        """Exactly one owner; a project's or key's tenant follows from it."""
        data = super().clean()
        owners = [data.get(name) for name in ("plan", "tenant", "project", "api_key")]
        if sum(owner is not None for owner in owners) != 1:
            raise ValidationError("Choose one of plan, tenant, project and key.")
        return data

    def _post_clean(self) -> None:
        """Services and the database check the row; the form's own owner columns are not the stored ones."""


class KeyForm(forms.ModelForm):  # type: ignore[type-arg] # not generic when it runs
    """What a new key needs; its text is made by the service."""

    kind = forms.ChoiceField(choices=KeyScope, widget=UnfoldAdminSelectWidget, initial=KeyScope.INFERENCE)
    models_text = forms.CharField(
        label="Allowed models",
        required=False,
        widget=UnfoldAdminTextInputWidget,
        help_text="Names, separated by commas; empty = every model.",
    )
    networks_text = forms.CharField(
        label="Allowed networks",
        required=False,
        widget=UnfoldAdminTextInputWidget,
        help_text="CIDR blocks, separated by commas; empty = from anywhere.",
    )
    expires_at = forms.SplitDateTimeField(required=False, widget=UnfoldAdminSplitDateTimeWidget)

    class Meta:
        model = ApiKey
        fields = ["project", "name", "expires_at"]

    def allowed_models(self) -> list[str] | None:
        """The names typed, or None for every model."""
        return self._listed("models_text") or None

    def allowed_networks(self) -> list[str]:
        """The networks typed; none for anywhere."""
        return self._listed("networks_text")

    def _listed(self, field: str) -> list[str]:
        return [item.strip() for item in self.cleaned_data[field].split(",") if item.strip()]
