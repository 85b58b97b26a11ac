"""The management API: tenants, projects, keys, limits and the audit trail. Thin: reads by query, writes by services.

Invariant: every query begins at `visible_tenants`, so that a foreign id is a 404 on every route.
"""

import re
from typing import Any, TypeVar

from django.db.models import Model, Q, QuerySet
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework import mixins, viewsets
from rest_framework.authentication import SessionAuthentication
from rest_framework.decorators import action
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request
from rest_framework.response import Response

from contracts.errors import InvalidRequest, PermissionDenied
from tenants import services
from tenants.api import shapes
from tenants.api.auth import ManagementKey, MayManage, actor_of, visible_tenants
from tenants.api.parsers import StrictJSON
from tenants.models import ApiKey, AuditEntry, LimitSetting, Project, Tenant

M = TypeVar("M", bound=Model)
# What a customer has agreed to: its prices and weight, its share of the queue, when its days and months begin.
_CONTRACT = frozenset({"plan", "queued_max", "timezone"})
_TENANT = OpenApiParameter("tenant", str, description="Only rows of this tenant (operators).")


class NewestFirst(CursorPagination):
    """Keyset pages by UUIDv7, newest first: stable while rows are added."""

    ordering = "-id"
    page_size = 50
    max_page_size = 200
    page_size_query_param = "limit"


class _Route(viewsets.GenericViewSet[M]):
    authentication_classes = [ManagementKey, SessionAuthentication]
    permission_classes = [MayManage]
    parser_classes = [StrictJSON]
    pagination_class = NewestFirst
    lookup_value_converter = "uuid"
    http_method_names = ["get", "post", "patch", "delete", "head", "options"]

    def tenants(self) -> QuerySet[Tenant]:
        return visible_tenants(self.request)

    def one_tenant(self, wanted: Any) -> Tenant:
        """The tenant named, or a key's own. Raises Http404, and InvalidRequest when an operator names none."""
        if wanted is not None:
            return get_object_or_404(self.tenants(), id=wanted)
        if isinstance(self.request.auth, ApiKey):
            return get_object_or_404(self.tenants())
        raise InvalidRequest("Name the tenant.", param="tenant", code="missing_required_parameter")

    def mine(self) -> Q:
        """Filter of a tenant-owned table: what the caller may see, narrowed by `?tenant=`."""
        allowed = Q(tenant_id__in=self.tenants().values("id"))
        wanted = self.request.query_params.get("tenant")
        if wanted is None:
            return allowed
        if not is_uuid(wanted):
            raise InvalidRequest("This is not an id.", param="tenant")
        return allowed & Q(tenant_id=wanted)

    def body(self, shape: type[shapes.Strict], *, partial: bool = False) -> dict[str, Any]:
        """The checked body. Raises DRF's ValidationError."""
        form = shape(data=self.request.data, partial=partial)
        form.is_valid(raise_exception=True)
        data: dict[str, Any] = form.validated_data
        return data


@extend_schema_view(list=extend_schema(summary="List tenants"), retrieve=extend_schema(summary="Read a tenant"))
class TenantRoute(mixins.ListModelMixin, mixins.RetrieveModelMixin, _Route[Tenant]):
    serializer_class = shapes.TenantOut
    operator_actions = frozenset({"create", "suspend", "resume", "close"})

    def get_queryset(self) -> QuerySet[Tenant]:
        return self.tenants().select_related("plan")

    @extend_schema(summary="Create a tenant (operators)", request=shapes.TenantIn, responses={201: shapes.TenantOut})
    def create(self, request: Request) -> Response:
        tenant = services.create_tenant(**self.body(shapes.TenantIn), actor=actor_of(request))
        return Response(shapes.TenantOut(tenant).data, status=201)

    @extend_schema(summary="Change a tenant", request=shapes.TenantPatch, responses=shapes.TenantOut)
    def partial_update(self, request: Request, pk: Any = None) -> Response:
        tenant, changes = self.get_object(), self.body(shapes.TenantPatch, partial=True)
        fixed = sorted(_CONTRACT & changes.keys()) if isinstance(request.auth, ApiKey) else []
        if fixed:
            raise PermissionDenied(f"`{fixed[0]}` is changed by an operator.", param=fixed[0])
        changed = services.change_tenant(tenant=tenant, changes=changes, actor=actor_of(request))
        return Response(shapes.TenantOut(changed).data)

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
        reason = self.body(shapes.ReasonIn)["reason"]
        moved = move(tenant=self.get_object(), reason=reason, actor=actor_of(self.request))
        return Response(shapes.TenantOut(moved).data)


@extend_schema_view(
    list=extend_schema(summary="List projects", parameters=[_TENANT]), retrieve=extend_schema(summary="Read a project")
)
class ProjectRoute(mixins.ListModelMixin, mixins.RetrieveModelMixin, _Route[Project]):
    serializer_class = shapes.ProjectOut
    queryset = Project.objects.all()

    def get_queryset(self) -> QuerySet[Project]:
        return Project.objects.filter(self.mine(), deleted_at=None)

    @extend_schema(summary="Create a project", request=shapes.ProjectIn, responses={201: shapes.ProjectOut})
    def create(self, request: Request) -> Response:
        body = self.body(shapes.ProjectIn)
        tenant = self.one_tenant(body.get("tenant"))
        project = services.create_project(tenant=tenant, name=body["name"], actor=actor_of(request))
        return Response(shapes.ProjectOut(project).data, status=201)

    @extend_schema(summary="Delete a project and revoke its keys", responses={204: None})
    def destroy(self, request: Request, pk: Any = None) -> Response:
        services.delete_project(project=self.get_object(), actor=actor_of(request))
        return Response(status=204)


@extend_schema_view(
    list=extend_schema(summary="List keys", parameters=[_TENANT]), retrieve=extend_schema(summary="Read a key")
)
class KeyRoute(mixins.ListModelMixin, mixins.RetrieveModelMixin, _Route[ApiKey]):
    serializer_class = shapes.KeyOut
    queryset = ApiKey.objects.all()

    def get_queryset(self) -> QuerySet[ApiKey]:
        return ApiKey.objects.filter(self.mine())

    @extend_schema(summary="Create a key; it is shown once", request=shapes.KeyIn, responses={201: shapes.KeyCreated})
    def create(self, request: Request) -> Response:
        body = self.body(shapes.KeyIn)
        projects = Project.objects.filter(self.mine(), deleted_at=None).select_related("tenant")
        project = get_object_or_404(projects, id=body.pop("project"))
        key, plaintext = services.create_key(project=project, **body, actor=actor_of(request))
        answer = Response({**shapes.KeyOut(key).data, "key": plaintext}, status=201)
        answer["Cache-Control"] = "no-store"
        return answer

    @extend_schema(summary="Revoke a key at once", request=shapes.ReasonIn, responses=shapes.KeyOut)
    @action(detail=True, methods=["post"])
    def revoke(self, request: Request, pk: Any = None) -> Response:
        reason = self.body(shapes.ReasonIn)["reason"]
        key = services.revoke_key(key=self.get_object(), reason=reason, actor=actor_of(request))
        return Response(shapes.KeyOut(key).data)

    @extend_schema(summary="Revoke a key at once", responses={204: None})
    def destroy(self, request: Request, pk: Any = None) -> Response:
        services.revoke_key(key=self.get_object(), actor=actor_of(request))
        return Response(status=204)


@extend_schema_view(list=extend_schema(summary="List limits", parameters=[_TENANT]))
class LimitRoute(mixins.ListModelMixin, _Route[LimitSetting]):
    serializer_class = shapes.LimitOut
    queryset = LimitSetting.objects.all()

    def get_queryset(self) -> QuerySet[LimitSetting]:
        return LimitSetting.objects.filter(self.mine())

    @extend_schema(
        summary="Set, change or remove limits of a tenant, project or key",
        request=shapes.LimitsIn,
        responses=shapes.LimitOut(many=True),
    )
    def create(self, request: Request) -> Response:
        body = self.body(shapes.LimitsIn)
        caps = {item["metric"]: item["cap"] for item in body["limits"]}
        owner = self._owner(body["scope"], body["id"])
        rows = services.set_limits(**owner, caps=caps, actor=actor_of(request))
        return Response(shapes.LimitOut(rows, many=True).data)

    def _owner(self, scope: str, wanted: Any) -> dict[str, Any]:
        if scope == "tenant":
            if isinstance(self.request.auth, ApiKey):
                # A customer may tighten its projects and keys; what it may use in all is its contract.
                raise PermissionDenied("Limits of the organization are set by an operator.", param="scope")
            return {"tenant": self.one_tenant(wanted)}
        if scope == "project":
            rows = Project.objects.filter(self.mine(), deleted_at=None).select_related("tenant")
            return {"project": get_object_or_404(rows, id=wanted)}
        return {"api_key": get_object_or_404(ApiKey.objects.filter(self.mine()).select_related("tenant"), id=wanted)}


@extend_schema_view(list=extend_schema(summary="Read the audit trail", parameters=[_TENANT]))
class AuditRoute(mixins.ListModelMixin, _Route[AuditEntry]):
    serializer_class = shapes.AuditOut
    queryset = AuditEntry.objects.all()

    def get_queryset(self) -> QuerySet[AuditEntry]:
        if isinstance(self.request.auth, ApiKey) or "tenant" in self.request.query_params:
            return AuditEntry.objects.filter(self.mine())
        return AuditEntry.objects.all()


def is_uuid(text: str) -> bool:
    """Whether `text` is an id in its usual form."""
    return re.fullmatch(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", text) is not None
