"""Routes of projects."""

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import mixins
from rest_framework.request import Request
from rest_framework.response import Response

from tenants import services
from tenants.api import shapes
from tenants.api.auth import actor_of
from tenants.api.lists import by_text
from tenants.api.routes import OF_TENANT, Route
from tenants.models import Project
from tenants.roles import Action


@extend_schema_view(list=extend_schema(summary="List projects"), retrieve=extend_schema(summary="Read a project"))
class ProjectRoute(mixins.ListModelMixin, Route[Project]):
    serializer_class = shapes.ProjectOut
    queryset = Project.objects.all()
    needs = {
        "list": Action.READ,
        "retrieve": Action.READ,
        **dict.fromkeys(("create", "partial_update", "destroy"), Action.MANAGE_PROJECTS),
    }
    filters = {"tenant": OF_TENANT, "name": by_text("name")}

    def get_queryset(self) -> QuerySet[Project]:
        return Project.objects.filter(self.mine(), deleted_at=None)

    @extend_schema(summary="Create a project", request=shapes.ProjectIn, responses={201: shapes.ProjectOut})
    def create(self, request: Request) -> Response:
        body = self.body(shapes.ProjectIn)
        tenant = self.one_tenant(body.get("tenant"))
        project = services.create_project(tenant=tenant, name=body["name"], actor=actor_of(request))
        return self.answer(project, status=201)

    @extend_schema(summary="Rename a project", request=shapes.ProjectPatch, responses=shapes.ProjectOut)
    def partial_update(self, request: Request, pk: Any = None) -> Response:
        project, body = self.to_change(must_match=True), self.body(shapes.ProjectPatch)
        return self.answer(services.rename_project(project=project, name=body["name"], actor=actor_of(request)))

    @extend_schema(summary="Delete a project and revoke its keys", responses={204: None})
    def destroy(self, request: Request, pk: Any = None) -> Response:
        services.delete_project(project=self.to_change(), actor=actor_of(request))
        return Response(status=204)
