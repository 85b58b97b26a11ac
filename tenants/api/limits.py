"""Routes of limits and of budgets, which are the limits on money with their alerts.

A customer may tighten its projects and keys; what it may use in all is its contract, which an operator changes.
"""

from typing import Any

from django.db.models import Q, QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import mixins
from rest_framework.request import Request
from rest_framework.response import Response

from contracts.errors import PermissionDenied
from contracts.tenancy import Metric, Scope
from tenants import services
from tenants.api import shapes
from tenants.api.auth import actor_of, caller_of
from tenants.api.lists import by_choice, by_id, by_text, by_value
from tenants.api.routes import OF_TENANT, Route
from tenants.models import METRICS, ApiKey, LimitSetting, Project
from tenants.roles import Action

_SCOPES = [scope.value for scope in Scope]


class _OfOwner(mixins.ListModelMixin, Route[LimitSetting]):
    queryset = LimitSetting.objects.all()
    needs = {"list": Action.READ, "retrieve": Action.READ, "create": Action.MANAGE_LIMITS}

    def get_queryset(self) -> QuerySet[LimitSetting]:
        return LimitSetting.objects.filter(self.mine(), plan=None).select_related("tenant")

    def owner(self, body: dict[str, Any]) -> dict[str, Any]:
        """What `scope` and `id` name, as `set_limits` takes it. Raises Http404, PermissionDenied."""
        scope, wanted = body.pop("scope"), body.pop("id")
        if scope == "tenant":
            tenant = self.one_tenant(wanted)
            if not caller_of(self.request).is_operator:
                raise PermissionDenied("Limits of the organization are set by an operator.", param="scope")
            return {"tenant": tenant}
        if scope == "project":
            rows = Project.objects.filter(self.mine(), deleted_at=None).select_related("tenant")
            return {"project": self.named(rows, wanted, param="id")}
        keys = ApiKey.objects.filter(self.mine()).select_related("tenant")
        return {"api_key": self.named(keys, wanted, param="id")}


@extend_schema_view(list=extend_schema(summary="List limits"), retrieve=extend_schema(summary="Read a limit"))
class LimitRoute(_OfOwner):
    serializer_class = shapes.LimitOut
    filters = {
        "tenant": OF_TENANT,
        "scope": by_value("scope", _SCOPES),
        "project": by_id("project_id"),
        "api_key": by_id("api_key_id"),
        "metric": by_value("metric", [name for name, _ in METRICS]),
        "model": by_text("model"),
    }

    @extend_schema(
        summary="Set, change or remove limits of a tenant, project or key",
        description="Answers with every limit of that owner. Metrics that are not named stay as they are.",
        request=shapes.LimitsIn,
        responses={200: shapes.LimitOut(many=True)},
    )
    def create(self, request: Request) -> Response:
        body = self.body(shapes.LimitsIn)
        caps = {item["metric"]: item["cap"] for item in body["limits"]}
        rows = services.set_limits(**self.owner(body), caps=caps, model=body["model"], actor=actor_of(request))
        return Response(shapes.LimitOut(rows, many=True).data)


@extend_schema_view(list=extend_schema(summary="List budgets"), retrieve=extend_schema(summary="Read a budget"))
class BudgetRoute(_OfOwner):
    serializer_class = shapes.BudgetOut
    filters = {
        "tenant": OF_TENANT,
        "scope": by_value("scope", _SCOPES),
        "project": by_id("project_id"),
        "api_key": by_id("api_key_id"),
        "period": by_choice(
            {
                "day": lambda: Q(metric=Metric.SPEND_PER_DAY),
                "month": lambda: Q(metric=Metric.SPEND_PER_MONTH),
                "lifetime": lambda: Q(metric=Metric.SPEND_LIFETIME),
            },
            "Calendar period, or the lifetime.",
        ),
        "model": by_text("model"),
    }

    def get_queryset(self) -> QuerySet[LimitSetting]:
        return super().get_queryset().filter(metric__in=list(shapes.PERIODS.values()))

    @extend_schema(
        summary="Set, change or remove a budget of a tenant, project or key",
        description="Answers with every budget of that owner. An inference request whose worst case passes what is "
        "spent is refused with 402; one that only what requests under way hold keeps out, with 429 and `retry-after`.",
        request=shapes.BudgetIn,
        responses={200: shapes.BudgetOut(many=True)},
    )
    def create(self, request: Request) -> Response:
        body = self.body(shapes.BudgetIn)
        metric = shapes.PERIODS[body["period"]]
        owner = self.owner(body)
        rows = services.set_limits(
            **owner,
            caps={metric.value: body["amount"]},
            model=body["model"],
            alerts=body["alerts"],
            actor=actor_of(request),
        )
        budgets = [row for row in rows if row.metric in set(shapes.PERIODS.values())]
        return Response(shapes.BudgetOut(budgets, many=True).data)
