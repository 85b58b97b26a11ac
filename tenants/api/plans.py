"""Routes of plans: a tenant reads its own; operators write them. A change is in force for its tenants at once."""

from typing import Any

from django.db.models import Q, QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import mixins
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from tenants import services
from tenants.api import shapes
from tenants.api.auth import actor_of, caller_of
from tenants.api.lists import by_choice, by_text
from tenants.api.routes import Route
from tenants.models import Plan
from tenants.roles import Action


@extend_schema_view(list=extend_schema(summary="List plans"), retrieve=extend_schema(summary="Read a plan"))
class PlanRoute(mixins.ListModelMixin, Route[Plan]):
    serializer_class = shapes.PlanOut
    queryset = Plan.objects.all()
    needs = {
        "list": Action.READ,
        "retrieve": Action.READ,
        **dict.fromkeys(("create", "partial_update", "limits"), Action.OPERATE),
    }
    filters = {
        "name": by_text("name"),
        "price_list": by_text("price_list__name", "By the price list's name."),
        "priced": by_choice(
            {"true": lambda: ~Q(price_list=None), "false": lambda: Q(price_list=None)}, "Has a price list."
        ),
    }

    def get_queryset(self) -> QuerySet[Plan]:
        plans = Plan.objects.select_related("price_list").prefetch_related("limits")
        if caller_of(self.request).is_operator:
            return plans
        return plans.filter(id__in=self.tenants().values("plan_id"))

    @extend_schema(summary="Create a plan (operators)", request=shapes.PlanIn, responses={201: shapes.PlanOut})
    def create(self, request: Request) -> Response:
        plan = services.create_plan(**self.body(shapes.PlanIn), actor=actor_of(request))
        return self.answer(plan, status=201)

    @extend_schema(summary="Change a plan (operators)", request=shapes.PlanPatch, responses=shapes.PlanOut)
    def partial_update(self, request: Request, pk: Any = None) -> Response:
        plan, changes = self.to_change(must_match=True), self.body(shapes.PlanPatch, partial=True)
        return self.answer(services.change_plan(plan=plan, changes=changes, actor=actor_of(request)))

    @extend_schema(
        summary="Set, change or remove limits of a plan (operators)",
        description="They hold for each of its tenants that has no own limit. Metrics not named stay as they are.",
        request=shapes.PlanLimitsIn,
        responses=shapes.PlanOut,
    )
    @action(detail=True, methods=["post"])
    def limits(self, request: Request, pk: Any = None) -> Response:
        plan, body = self.to_change(), self.body(shapes.PlanLimitsIn)
        caps = {item["metric"]: item["cap"] for item in body["limits"]}
        services.set_limits(plan=plan, caps=caps, model=body["model"], actor=actor_of(request))
        return self.answer(self.get_queryset().get(pk=plan.pk))
