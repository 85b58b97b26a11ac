"""Pages that show and never change, and pages of what two people must agree on."""

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db import models
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from unfold.admin import ModelAdmin, TabularInline
from unfold.decorators import action

from billing.rating.prices import PriceError
from billing.services import PriceChangeRefused, approve, withdraw


class ReadOnlyInline(TabularInline):
    """Rows that are shown and never changed here."""

    extra = 0
    can_delete = False

    def has_add_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False


class Acting(ModelAdmin):
    """Whoever may add or change such rows sees the buttons that act on one, and nobody else."""

    def has_act_permission(self, request: HttpRequest, object_id: object = None) -> bool:
        """Asked by django-unfold for actions with the permission `act`."""
        name = f"{self.opts.app_label}.{{}}_{self.opts.model_name}"
        return any(request.user.has_perm(name.format(verb)) for verb in ("add", "change"))


class ReadOnly(Acting):
    """A page to look at: the database refuses changes too."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False


class StateFilter(admin.SimpleListFilter):
    """Proposals among what was approved and withdrawn: `Version.state` as a filter."""

    title, parameter_name = "state", "state"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin) -> list[tuple[str, str]]:
        return [
            ("proposed", "Proposed, not approved"),
            ("approved", "Approved"),
            ("withdrawn", "Withdrawn"),
        ]

    def queryset(self, request: HttpRequest, queryset: models.QuerySet[Any]) -> models.QuerySet[Any]:
        if self.value() == "proposed":
            return queryset.filter(approved_by="", withdrawn_by="")
        if self.value() == "approved":
            return queryset.exclude(approved_by="")
        return queryset.exclude(withdrawn_by="") if self.value() == "withdrawn" else queryset


class VersionAdmin(Acting):
    """Adding proposes; a second person approves, by POST and after being asked; nothing is edited or deleted.

    `shown`: what the page of a version says of it, before who wrote it and who agreed.
    """

    actions_detail = ["approve", "withdraw"]
    shown: tuple[str, ...] = ()

    def get_fields(self, request: HttpRequest, obj: models.Model | None = None) -> Any:
        """A proposal is typed; a version is read."""
        if obj is None:
            return super().get_fields(request, obj)
        return [*self.shown, "valid_from", "valid_until", "state", "created_by", "agreed"]

    def get_readonly_fields(self, request: HttpRequest, obj: models.Model | None = None) -> Any:
        return super().get_readonly_fields(request, obj) if obj is None else self.get_fields(request, obj)

    @admin.display(description="valid to", ordering="valid_to", empty_value="open")
    def valid_until(self, version: Any) -> str:
        return "open" if version.valid_to is None else f"{version.valid_to:%Y-%m-%d %H:%M:%S} UTC"

    @admin.display(description="approved by", ordering="approved_by")
    def agreed(self, version: Any) -> str:
        if version.withdrawn_by:
            return f"nobody: withdrawn by {version.withdrawn_by}"
        return str(version.approved_by) or "nobody yet"

    def has_change_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        return {"valid_from": timezone.now(), "currency": "USD"}

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:  # noqa: FBT001
        obj.created_by = actor_of(request)
        super().save_model(request, obj, form, change)

    @action(description="Approve", url_path="approve", icon="verified", permissions=["act"])
    def approve(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Record the second person: it holds from its time on, or from now if that has passed."""

        def run(version: Any, data: dict[str, Any]) -> str:
            held = approve(version, actor=actor_of(request), now=timezone.now())
            return f"Approved: holds from {held.valid_from:%Y-%m-%d %H:%M} UTC."

        return self.asked(request, object_id, title="Approve", form=forms.Form, run=run)

    @action(description="Withdraw", url_path="withdraw", icon="undo", permissions=["act"])
    def withdraw(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Take a proposal back."""

        def run(version: Any, data: dict[str, Any]) -> str:
            withdraw(version, actor=actor_of(request))
            return "Withdrawn: it stays on record and holds for nobody."

        return self.asked(request, object_id, title="Withdraw", form=forms.Form, run=run)

    def asked(
        self,
        request: HttpRequest,
        object_id: str,
        *,
        title: str,
        form: type[forms.Form],
        run: Callable[[Any, dict[str, Any]], str],
    ) -> HttpResponse:
        """Show `form`; by POST, run what was asked for and go back to the list."""
        back = redirect(reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist"))
        version = self.get_object(request, object_id)
        if version is None or not self.has_add_permission(request):
            return back
        filled = form(request.POST if request.method == "POST" else None)
        if filled.is_valid():
            try:
                messages.success(request, run(version, filled.cleaned_data))
            except (PriceChangeRefused, PriceError) as error:
                messages.error(request, str(error))
                if not filled.fields:
                    return back
            else:
                return back
        context = {
            **self.admin_site.each_context(request),
            "title": f"{title}: {version}",
            "form": filled,
            "opts": self.opts,
            "version": version,
        }
        return TemplateResponse(request, "billing/version.html", context)


def actor_of(request: HttpRequest) -> str:
    return f"user:{request.user.get_username()}"
