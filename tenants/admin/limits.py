"""Every limit that is set, whosever it is: a plan's, a tenant's, a project's, a key's."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import ForeignKey, QuerySet
from django.forms import ModelForm
from django.http import HttpRequest

from contracts.tenancy import Metric
from tenants import services
from tenants.admin.base import SafeAdmin, actor_of, adopt
from tenants.forms import LimitForm, LimitOwnerForm, keys_by_tenant, projects_by_tenant
from tenants.models import LimitSetting


@admin.register(LimitSetting)
class LimitSettingAdmin(SafeAdmin):
    list_display = ["owner", "scope", "metric", "model", "shown_cap", "updated_at"]
    list_filter = ["scope", "metric", "tenant", "plan"]
    list_select_related = ["plan", "tenant", "project", "api_key"]
    search_fields = ["tenant__name", "plan__name", "project__name", "api_key__name"]
    empty_hint = "Without any, everything is allowed. Add one here, or on the page of a plan or a tenant."
    form = LimitOwnerForm
    fields = ["plan", "tenant", "project", "api_key", "metric", "model", "cap"]

    def get_readonly_fields(self, request: HttpRequest, obj: LimitSetting | None = None) -> list[str]:
        """Only the cap of a limit that stands is changed."""
        return [] if obj is None else ["plan", "tenant", "project", "api_key", "metric", "model"]

    def has_change_permission(self, request: HttpRequest, obj: LimitSetting | None = None) -> bool:
        """What follows a tenant's credit is for looking."""
        return bool(super().has_change_permission(request, obj)) and not _is_kept(obj)

    def has_delete_permission(self, request: HttpRequest, obj: LimitSetting | None = None) -> bool:
        return bool(super().has_delete_permission(request, obj)) and not _is_kept(obj)

    def get_form(self, request: HttpRequest, obj: LimitSetting | None = None, **kwargs: Any) -> Any:
        """A limit that stands keeps its owner and metric."""
        kwargs["form"] = LimitOwnerForm if obj is None else CapForm
        return super().get_form(request, obj, **kwargs)

    @admin.display(description="of")
    def owner(self, row: LimitSetting) -> str:
        if row.plan is not None:
            return f"plan {row.plan.name}"
        part = row.project or row.api_key
        return f"{row.tenant}" + (f" / {part}" if part else "")

    @admin.display(description="cap", ordering="cap")
    def shown_cap(self, row: LimitSetting) -> str:
        return row.cap_text

    def formfield_for_foreignkey(self, db_field: ForeignKey[Any, Any], request: HttpRequest, **kwargs: Any) -> Any:
        """Projects and keys with their tenants' names."""
        if db_field.name == "project":
            return projects_by_tenant(required=False)
        if db_field.name == "api_key":
            return keys_by_tenant()
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def save_model(self, request: HttpRequest, obj: LimitSetting, form: ModelForm[LimitSetting], change: Any) -> None:
        metric = obj.metric if change else form.cleaned_data["metric"]
        given = ("plan", "tenant", "project", "api_key")
        chosen = {name: form.cleaned_data.get(name) for name in given if form.cleaned_data.get(name)}
        owner = owner_of(obj) if change else chosen
        model = obj.model if change else form.cleaned_data["model"]
        caps = {metric: form.cleaned_data["cap"]}
        rows = services.set_limits(**owner, caps=caps, model=model, actor=actor_of(request))
        adopt(obj, next(row for row in rows if (row.metric, row.model) == (metric, model)))

    def delete_model(self, request: HttpRequest, obj: LimitSetting) -> None:
        services.set_limits(**owner_of(obj), caps={obj.metric: None}, model=obj.model, actor=actor_of(request))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[LimitSetting]) -> None:
        for row in queryset.select_related("plan", "tenant", "project__tenant", "api_key__tenant"):
            self.delete_model(request, row)


def _is_kept(row: LimitSetting | None) -> bool:
    return row is not None and row.metric == Metric.PREPAID_CREDIT


class CapForm(LimitForm):
    """A new cap for a limit that stands."""

    metric = None  # type: ignore[assignment]

    class Meta(LimitForm.Meta):
        fields = ["cap"]

    def clean(self) -> dict[str, Any]:
        """The metric is the row's own."""
        self.cleaned_data["metric"] = self.instance.metric
        return super().clean()

    def scope(self, data: dict[str, Any]) -> str:
        """It stays where it stands."""
        return str(self.instance.scope)


def owner_of(row: LimitSetting) -> dict[str, Any]:
    """What a limit belongs to, as `services.set_limits` takes it."""
    if row.api_key is not None:
        return {"api_key": row.api_key}
    if row.project is not None:
        return {"project": row.project}
    return {"plan": row.plan} if row.plan is not None else {"tenant": row.tenant}
