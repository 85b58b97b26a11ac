"""The operator's console for tenants, keys, plans, limits and the audit trail (django-unfold).

Invariant: nothing is saved here but by `tenants.services`, so every change has its event and its epoch. Lists take a
fixed number of queries whatever their length.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import Count, ForeignKey, Model, OuterRef, Q, QuerySet, Subquery
from django.forms import BaseModelFormSet, ModelForm
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.utils import timezone
from unfold.admin import ModelAdmin, TabularInline
from unfold.decorators import action

from contracts.money import text_from_nano
from contracts.tenancy import Metric
from tenants import services
from tenants.actors import Actor
from tenants.forms import KeyForm, LimitForm, LimitOwnerForm
from tenants.limits.policy import is_money
from tenants.models import ApiKey, AuditEntry, LimitSetting, Plan, Project, Tenant


def actor_of(request: HttpRequest) -> Actor:
    """The operator at the screen."""
    return Actor(name=f"user:{request.user.get_username()}", address=request.META.get("REMOTE_ADDR") or None)


_KEY_DATES = ("created_at", "expires_at", "revoked_at")


def adopt(row: Model, saved: Model) -> None:
    """Make the admin's own instance the one that a service saved."""
    row.__dict__.update(saved.__dict__)


class SafeAdmin(ModelAdmin):  # type: ignore[misc] # unfold has no types
    """What a service refuses is said on the page."""

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return super().changeform_view(request, *args, **kwargs)  # type: ignore[no-any-return]
        except ValidationError as error:
            self.message_user(request, " ".join(error.messages), messages.ERROR)
            return redirect(request.get_full_path())


class LimitInline(TabularInline):  # type: ignore[misc] # unfold has no types
    model = LimitSetting
    form = LimitForm
    fields = ["metric", "model", "cap"]
    extra = 0

    def get_queryset(self, request: HttpRequest) -> QuerySet[LimitSetting]:
        """Limits of the owner itself, not of its projects and keys."""
        queryset: QuerySet[LimitSetting] = super().get_queryset(request)
        return queryset.filter(project=None, api_key=None)


class ProjectInline(TabularInline):  # type: ignore[misc] # unfold has no types
    model = Project
    fields = ["name", "created_at"]
    readonly_fields = ["created_at"]
    extra = 0
    can_delete = False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Project]:
        """Live projects only."""
        queryset: QuerySet[Project] = super().get_queryset(request)
        return queryset.filter(deleted_at=None)


class _OwnerAdmin(SafeAdmin):
    """Saves the inlines of a plan or a tenant by services."""

    def save_formset(self, request: HttpRequest, form: Any, formset: BaseModelFormSet[Any, Any], change: Any) -> None:
        """Limits in one call, so that one event tells of all; projects one by one."""
        rows = formset.save(commit=False)
        owner, actor = form.instance, actor_of(request)
        if formset.model is LimitSetting:
            target = {"plan": owner} if isinstance(owner, Plan) else {"tenant": owner}
            for model, caps in _caps_by_model(formset, rows).items():
                services.set_limits(**target, caps=caps, model=model, actor=actor)
            return
        for row in rows:
            if row._state.adding:  # noqa: SLF001 - Django's own API
                adopt(row, services.create_project(tenant=owner, name=row.name, actor=actor))
            else:
                services.rename_project(project=row, name=row.name, actor=actor)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nothing that an old report names is deleted."""
        return False


def _caps_by_model(formset: BaseModelFormSet[Any, Any], rows: list[Any]) -> dict[str, dict[str, int | None]]:
    """What a formset of limits asks for, as `set_limits` takes it: one call for each model named."""
    found: dict[str, dict[str, int | None]] = {}
    for row in formset.deleted_objects:
        found.setdefault(row.model, {})[row.metric] = None
    for form in formset.forms:
        before = form.initial.get("metric"), form.initial.get("model", "")
        if form.instance in rows and before[0] and before != (form.instance.metric, form.instance.model):
            found.setdefault(before[1], {})[before[0]] = None
    for row in rows:
        found.setdefault(row.model, {})[row.metric] = row.cap
    return found


@admin.register(Plan)
class PlanAdmin(_OwnerAdmin):
    list_display = ["name", "weight_milli", "queued_max", "max_tokens_default", "price_list", "tenant_count"]
    list_select_related = ["price_list"]
    inlines = [LimitInline]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Plan]:
        queryset: QuerySet[Plan] = super().get_queryset(request)
        return queryset.annotate(tenants_now=Count("tenants", filter=~Q(tenants__state="closed")))

    @admin.display(description="tenants", ordering="tenants_now")
    def tenant_count(self, plan: Any) -> int:
        return int(plan.tenants_now)

    def save_model(self, request: HttpRequest, obj: Plan, form: ModelForm[Plan], change: Any) -> None:
        fields = {name: form.cleaned_data[name] for name in form.changed_data}
        if change:
            services.change_plan(plan=obj, changes=fields, actor=actor_of(request))
        else:
            adopt(obj, services.create_plan(**form.cleaned_data, actor=actor_of(request)))


@admin.register(Tenant)
class TenantAdmin(_OwnerAdmin):
    list_display = ["name", "state", "plan", "project_count", "key_count", "timezone", "currency", "created_at"]
    list_filter = ["state", "plan"]
    list_select_related = ["plan"]
    search_fields = ["name", "id"]
    readonly_fields = ["state", "created_at"]
    inlines = [LimitInline, ProjectInline]
    actions = ["suspend", "resume", "close"]
    actions_detail = ["limits_now"]

    @action(description="Limits now", url_path="limits-now", icon="speed", permissions=["view"])
    def limits_now(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """What of each limit is used, held and free: the console's own page."""
        return redirect("tenant_limits", object_id)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Tenant]:
        queryset: QuerySet[Tenant] = super().get_queryset(request)
        return queryset.annotate(
            projects_now=Count("projects", filter=Q(projects__deleted_at=None), distinct=True),
            keys_now=Count("api_keys", filter=Q(api_keys__revoked_at=None), distinct=True),
        )

    @admin.display(description="projects", ordering="projects_now")
    def project_count(self, tenant: Any) -> int:
        return int(tenant.projects_now)

    @admin.display(description="live keys", ordering="keys_now")
    def key_count(self, tenant: Any) -> int:
        return int(tenant.keys_now)

    def get_readonly_fields(self, request: HttpRequest, obj: Tenant | None = None) -> list[str]:
        """The currency is chosen once: amounts of two currencies are never added."""
        return [*self.readonly_fields, *(["currency"] if obj else [])]

    def save_model(self, request: HttpRequest, obj: Tenant, form: ModelForm[Tenant], change: Any) -> None:
        if change:
            fields = {name: form.cleaned_data[name] for name in form.changed_data}
            if fields:
                services.change_tenant(tenant=obj, changes=fields, actor=actor_of(request))
            return
        fields = dict(form.cleaned_data)
        policy = fields.pop("policy", None)
        tenant = services.create_tenant(**fields, actor=actor_of(request))
        if policy is not None:
            tenant = services.change_tenant(tenant=tenant, changes={"policy": policy}, actor=actor_of(request))
        adopt(obj, tenant)

    @admin.action(description="Suspend: refuse every request, cut running streams", permissions=["change"])
    def suspend(self, request: HttpRequest, queryset: QuerySet[Tenant]) -> None:
        self._move(request, queryset.exclude(state="closed"), services.suspend_tenant)

    @admin.action(description="Resume", permissions=["change"])
    def resume(self, request: HttpRequest, queryset: QuerySet[Tenant]) -> None:
        self._move(request, queryset.exclude(state="closed"), services.resume_tenant)

    @admin.action(description="Close for good", permissions=["change"])
    def close(self, request: HttpRequest, queryset: QuerySet[Tenant]) -> None:
        self._move(request, queryset, services.close_tenant)

    def _move(self, request: HttpRequest, queryset: QuerySet[Tenant], move: Callable[..., Tenant]) -> None:
        moved = [move(tenant=tenant, actor=actor_of(request)) for tenant in queryset]
        self.message_user(request, f"{len(moved)} tenants changed.", messages.SUCCESS)


@admin.register(ApiKey)
class ApiKeyAdmin(SafeAdmin):
    list_display = ["name", "hint", "tenant", "project", "scope", "standing", "created_at", "last_used", "expires_at"]
    list_filter = ["tenant", ("revoked_at", admin.EmptyFieldListFilter)]
    list_select_related = ["tenant", "project"]
    search_fields = ["name", "last4", "id", "tenant__name"]
    actions = ["revoke"]
    actions_detail = ["limits_now"]
    form = KeyForm

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
            "scopes",
            "allowed_models",
            "allowed_networks",
            "created_at",
            "rotated_at",
            "last_used_at",
            "expires_at",
            "revoked_at",
        ]

    @admin.display(description="last used", ordering="last_used_at", empty_value="never")
    def last_used(self, key: ApiKey) -> datetime | None:
        return key.last_used_at

    def has_change_permission(self, request: HttpRequest, obj: ApiKey | None = None) -> bool:
        """A key is never edited, only revoked; the action asks for the permission itself."""
        return obj is None and bool(super().has_change_permission(request))

    def has_delete_permission(self, request: HttpRequest, obj: ApiKey | None = None) -> bool:
        """Nothing that an old report names is deleted."""
        return False

    def formfield_for_foreignkey(self, db_field: ForeignKey[Any, Any], request: HttpRequest, **kwargs: Any) -> Any:
        """Projects that may get a key, with their tenants, in one query."""
        if db_field.name == "project":
            live = Project.objects.filter(deleted_at=None).exclude(tenant__state="closed")
            kwargs["queryset"] = live.select_related("tenant").order_by("tenant__name", "name")
        field = super().formfield_for_foreignkey(db_field, request, **kwargs)
        if db_field.name == "project" and field is not None:
            field.label_from_instance = lambda project: f"{project.tenant.name} / {project.name}"
        return field

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


@admin.register(LimitSetting)
class LimitSettingAdmin(SafeAdmin):
    list_display = ["owner", "scope", "metric", "model", "shown_cap", "updated_at"]
    list_filter = ["scope", "metric", "tenant", "plan"]
    list_select_related = ["plan", "tenant", "project", "api_key"]
    form = LimitOwnerForm
    fields = ["plan", "tenant", "project", "api_key", "metric", "model", "cap"]

    def get_readonly_fields(self, request: HttpRequest, obj: LimitSetting | None = None) -> list[str]:
        """Only the cap of a limit that stands is changed."""
        return [] if obj is None else ["plan", "tenant", "project", "api_key", "metric", "model"]

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
        return text_from_nano(row.cap) if is_money(Metric(row.metric)) else f"{row.cap:,}"

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


@admin.register(AuditEntry)
class AuditEntryAdmin(ModelAdmin):  # type: ignore[misc] # unfold has no types
    list_display = ["happened_at", "name", "tenant", "subject", "actor", "address"]
    list_filter = ["name"]
    search_fields = ["subject", "actor", "tenant_id"]
    show_full_result_count = False

    def get_queryset(self, request: HttpRequest) -> QuerySet[AuditEntry]:
        queryset: QuerySet[AuditEntry] = super().get_queryset(request)
        name = Tenant.objects.filter(id=OuterRef("tenant_id")).values("name")[:1]
        return queryset.annotate(tenant_name=Subquery(name))

    @admin.display(description="tenant")
    def tenant(self, entry: Any) -> str:
        return str(entry.tenant_name or "-")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: AuditEntry | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: AuditEntry | None = None) -> bool:
        return False
