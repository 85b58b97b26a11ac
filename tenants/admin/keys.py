"""API keys: made, looked at, revoked; never edited. The text of a new one is in the answer that makes it, only."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib import admin, messages
from django.db.models import ForeignKey, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.utils import timezone
from unfold.decorators import action

from tenants import services
from tenants.admin.base import SafeAdmin, actor_of, adopt
from tenants.forms import KeyForm, projects_by_tenant
from tenants.models import ApiKey


@admin.register(ApiKey)
class ApiKeyAdmin(SafeAdmin):
    list_display = ["name", "hint", "tenant", "project", "scope", "standing", "created_at", "last_used", "expires"]
    list_filter = ["tenant", ("revoked_at", admin.EmptyFieldListFilter)]
    list_select_related = ["tenant", "project"]
    search_fields = ["name", "last4", "id", "tenant__name"]
    actions = ["revoke"]
    actions_detail = ["limits_now"]
    form = KeyForm
    empty_hint = (
        "A tenant's first key is made here or by `manage.py create_key`; a management key then makes more by "
        "`POST /api/v1/keys`."
    )

    @action(description="Limits now", url_path="limits-now", icon="speed", permissions=["view"])
    def limits_now(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Every limit over this key as it stands: the console's own page."""
        return redirect("key_limits", object_id)

    def get_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> list[str]:
        """Two pages: making a key, and looking at one."""
        if obj is None:
            return ["project", "name", "kind", "models_text", "networks_text", "expires_at"]
        return [
            "name",
            "hint",
            "tenant",
            "project",
            "scope",
            "standing",
            "models",
            "networks",
            "created_at",
            "rotated_at",
            "last_used",
            "expires",
            "revoked_at",
        ]

    def get_readonly_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> list[str]:
        """A key that stands is looked at."""
        return [] if obj is None else self.get_fields(request, obj)

    @admin.display(description="last used", ordering="last_used_at")
    def last_used(self, key: ApiKey) -> str:
        return _moment(key.last_used_at)

    def has_change_permission(self, request: HttpRequest, obj: ApiKey | None = None) -> bool:
        """A key is never edited, only revoked; the action asks for the permission itself."""
        return obj is None and bool(super().has_change_permission(request))

    def has_delete_permission(self, request: HttpRequest, obj: ApiKey | None = None) -> bool:
        """Nothing that an old report names is deleted."""
        return False

    def formfield_for_foreignkey(self, db_field: ForeignKey[Any, Any], request: HttpRequest, **kwargs: Any) -> Any:
        """Projects that may get a key, with their tenants."""
        if db_field.name == "project":
            return projects_by_tenant()
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def save_model(self, request: HttpRequest, obj: ApiKey, form: KeyForm, change: Any) -> None:
        key, plaintext = services.create_key(
            project=form.cleaned_data["project"],
            name=form.cleaned_data["name"],
            scopes=[form.cleaned_data["kind"]],
            allowed_models=form.allowed_models(),
            allowed_networks=form.allowed_networks(),
            expires_at=form.cleaned_data["expires_at"],
            actor=actor_of(request),
        )
        adopt(obj, key)
        request.META["weir.plaintext"] = plaintext

    def response_add(self, request: HttpRequest, obj: ApiKey, post_url_continue: str | None = None) -> HttpResponse:
        """Shows the key in the answer itself: not in a message, which would travel in a cookie."""
        context = {
            **self.admin_site.each_context(request),
            "title": "API key created",
            "key": obj,
            "plaintext": request.META.pop("weir.plaintext"),
        }
        response = TemplateResponse(request, "tenants/key_created.html", context)
        response["Cache-Control"] = "no-store"
        return response

    @admin.display(description="models")
    def models(self, key: ApiKey) -> str:
        return "every model" if key.allowed_models is None else ", ".join(key.allowed_models) or "none"

    @admin.display(description="used from")
    def networks(self, key: ApiKey) -> str:
        return ", ".join(key.allowed_networks) or "anywhere"

    @admin.display(description="expires", ordering="expires_at")
    def expires(self, key: ApiKey) -> str:
        return _moment(key.expires_at)

    @admin.display(description="key")
    def hint(self, key: ApiKey) -> str:
        return f"{key.prefix}…{key.last4}"

    @admin.display(description="scope")
    def scope(self, key: ApiKey) -> str:
        return ", ".join(key.scopes)

    @admin.display(description="state")
    def standing(self, key: ApiKey) -> str:
        if key.revoked_at is not None:
            return "revoked"
        if key.expired_at is not None:
            return "expired"
        return "expired" if key.expires_at is not None and key.expires_at <= timezone.now() else "active"

    @admin.action(description="Revoke at once", permissions=["change"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        keys = [services.revoke_key(key=key, reason="admin", actor=actor_of(request)) for key in queryset]
        self.message_user(request, f"{len(keys)} keys are revoked.", messages.SUCCESS)


def _moment(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC" if at is not None else "never"
