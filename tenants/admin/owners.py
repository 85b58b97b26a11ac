"""Plans and tenants, with their limits and projects on their own pages."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import Count, Q, QuerySet
from django.forms import BaseModelFormSet, ModelForm
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from unfold.admin import TabularInline
from unfold.decorators import action

from contracts.tenancy import Metric
from tenants import services
from tenants.admin.base import SafeAdmin, actor_of, adopt
from tenants.forms import LimitForm, PlanForm, TenantForm
from tenants.models import LimitSetting, Plan, Project, Tenant


class LimitInline(TabularInline):  # type: ignore[misc] # unfold has no types
    model = LimitSetting
    form = LimitForm
    fields = ["metric", "model", "cap"]
    extra = 0

    def get_queryset(self, request: HttpRequest) -> QuerySet[LimitSetting]:
        """Limits of the owner itself that people set, not of its projects and keys."""
        queryset: QuerySet[LimitSetting] = super().get_queryset(request)
        return queryset.filter(project=None, api_key=None).exclude(metric=Metric.PREPAID_CREDIT)


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


class OwnerAdmin(SafeAdmin):
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
class PlanAdmin(OwnerAdmin):
    list_display = [
        "name",
        "weight",
        "class_in_pool",
        "waiting",
        "output_default",
        "output_most",
        "prices",
        "tenant_count",
    ]
    list_select_related = ["price_list"]
    form = PlanForm
    empty_hint = "Every tenant has a plan: add one first. `make up` makes one with the demo's tenants."
    inlines = [LimitInline]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Plan]:
        queryset: QuerySet[Plan] = super().get_queryset(request)
        return queryset.annotate(tenants_now=Count("tenants", filter=~Q(tenants__state="closed")))

    @admin.display(description="weight in a busy pool", ordering="weight_milli")
    def weight(self, plan: Plan) -> str:
        return f"{Decimal(plan.weight_milli).scaleb(-3).normalize():f}"

    @admin.display(description="class", ordering="service_class")
    def class_in_pool(self, plan: Plan) -> str:
        return plan.get_service_class_display()

    @admin.display(description="waiting at once", ordering="queued_max")
    def waiting(self, plan: Plan) -> str:
        return f"{plan.queued_max:,} requests"

    @admin.display(description="output by default", ordering="max_tokens_default")
    def output_default(self, plan: Plan) -> str:
        return f"{plan.max_tokens_default:,} tokens"

    @admin.display(description="output at most", ordering="max_tokens_cap")
    def output_most(self, plan: Plan) -> str:
        return "the model's own end" if plan.max_tokens_cap is None else f"{plan.max_tokens_cap:,} tokens"

    @admin.display(description="prices", ordering="price_list__name")
    def prices(self, plan: Plan) -> str:
        return "what everybody pays" if plan.price_list is None else str(plan.price_list)

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
class TenantAdmin(OwnerAdmin):
    list_display = ["name", "state", "plan", "project_count", "key_count", "timezone", "currency", "created_at"]
    list_filter = ["state", "plan"]
    list_select_related = ["plan"]
    search_fields = ["name", "id"]
    ordering = ["name", "id"]  # the counts below drop the model's own, and what is offered in forms has pages
    readonly_fields = ["state", "created_at"]
    form = TenantForm
    empty_hint = "Whoever uses the platform is a tenant: add one, with a plan; then a project on its page, then a key."
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

    def get_fields(self, request: HttpRequest, obj: Tenant | None = None) -> list[str]:
        """Its state and age once it is there."""
        chosen = ["name", "plan", "currency", "timezone", "policy", "queued_max"]
        chosen += ["evaluation_log", "cut_to_affordable", "prepaid"]
        return chosen if obj is None else ["name", "state", *chosen[1:], "created_at"]

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
    def close(self, request: HttpRequest, queryset: QuerySet[Tenant]) -> HttpResponse | None:
        """Asks first: nothing brings a closed tenant back."""
        if request.POST.get("sure") == "yes":
            self._move(request, queryset, services.close_tenant)
            return None
        context = {
            **self.admin_site.each_context(request),
            "title": "Close for good",
            "opts": self.opts,
            "tenants": list(queryset.exclude(state="closed")),
            "chosen": ACTION_CHECKBOX_NAME,
        }
        return TemplateResponse(request, "tenants/close.html", context)

    def _move(self, request: HttpRequest, queryset: QuerySet[Tenant], move: Callable[..., Tenant]) -> None:
        moved = [move(tenant=tenant, actor=actor_of(request)) for tenant in queryset]
        self.message_user(request, f"{len(moved)} tenants changed.", messages.SUCCESS)
