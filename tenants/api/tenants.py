"""Routes of tenants: what a customer may change of itself, and what only an operator may."""

from typing import Any

from django.db.models import Q, QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import mixins
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from contracts.errors import PermissionDenied
from tenants import services
from tenants.api import shapes
from tenants.api.auth import actor_of, caller_of
from tenants.api.lists import by_choice, by_id, by_text, by_value
from tenants.api.routes import Route
from tenants.models import Tenant, TenantState
from tenants.roles import Action

# What a customer has agreed to: prices and weight, share of the queue, when days and months begin, who pays first.
_CONTRACT = frozenset({"plan", "queued_max", "timezone", "prepaid"})


@extend_schema_view(list=extend_schema(summary="List tenants"), retrieve=extend_schema(summary="Read a tenant"))
class TenantRoute(mixins.ListModelMixin, Route[Tenant]):
    serializer_class = shapes.TenantOut
    queryset = Tenant.objects.all()
    needs = {
        "list": Action.READ,
        "retrieve": Action.READ,
        "partial_update": Action.MANAGE_TENANT,
        **dict.fromkeys(("create", "suspend", "resume", "close"), Action.OPERATE),
    }
    filters = {
        "tenant": by_id("id"),
        "name": by_text("name"),
        "plan": by_text("plan__name", "By the plan's name."),
        "state": by_value("state", TenantState.values),
        "guarded": by_choice({"true": lambda: ~Q(policy=None), "false": lambda: Q(policy=None)}, "Has a policy."),
    }

    def get_queryset(self) -> QuerySet[Tenant]:
        return self.tenants().select_related("plan")

    @extend_schema(summary="Create a tenant (operators)", request=shapes.TenantIn, responses={201: shapes.TenantOut})
    def create(self, request: Request) -> Response:
        tenant = services.create_tenant(**self.body(shapes.TenantIn), actor=actor_of(request))
        return self.answer(tenant, status=201)

    @extend_schema(summary="Change a tenant", request=shapes.TenantPatch, responses=shapes.TenantOut)
    def partial_update(self, request: Request, pk: Any = None) -> Response:
        tenant, changes = self.to_change(must_match=True), self.body(shapes.TenantPatch, partial=True)
        fixed = sorted(_CONTRACT & changes.keys()) if not caller_of(request).is_operator else []
        if fixed:
            raise PermissionDenied(f"`{fixed[0]}` is changed by an operator.", param=fixed[0])
        return self.answer(services.change_tenant(tenant=tenant, changes=changes, actor=actor_of(request)))

    @extend_schema(summary="Suspend (operators)", request=shapes.ReasonIn, responses=shapes.TenantOut)
    @action(detail=True, methods=["post"])
    def suspend(self, request: Request, pk: Any = None) -> Response:
        return self._move(services.suspend_tenant)

    @extend_schema(summary="Resume (operators)", request=shapes.ReasonIn, responses=shapes.TenantOut)
    @action(detail=True, methods=["post"])
    def resume(self, request: Request, pk: Any = None) -> Response:
        return self._move(services.resume_tenant)

    @extend_schema(summary="Close for good (operators)", request=shapes.ReasonIn, responses=shapes.TenantOut)
    @action(detail=True, methods=["post"])
    def close(self, request: Request, pk: Any = None) -> Response:
        return self._move(services.close_tenant)

    def _move(self, move: Any) -> Response:
        tenant, reason = self.to_change(), self.body(shapes.ReasonIn)["reason"]
        return self.answer(move(tenant=tenant, reason=reason, actor=actor_of(self.request)))
