"""Routes of API keys. The text of a key is in the answer that made it, and nowhere else."""

from functools import partial
from typing import Any

from django.db.models import Q, QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import mixins
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from tenants import services
from tenants.api import shapes
from tenants.api.auth import actor_of
from tenants.api.lists import by_choice, by_id, by_text
from tenants.api.routes import OF_TENANT, Route
from tenants.models import ApiKey, KeyScope, Project
from tenants.roles import Action


def _has_scope(scope: str) -> Q:
    return Q(scopes__contains=[scope])


def _over() -> Q:
    return Q(expired_at__isnull=False) | Q(expires_at__lte=timezone.now())


@extend_schema_view(list=extend_schema(summary="List keys"), retrieve=extend_schema(summary="Read a key"))
class KeyRoute(mixins.ListModelMixin, Route[ApiKey]):
    serializer_class = shapes.KeyOut
    queryset = ApiKey.objects.all()
    needs = {
        "list": Action.READ,
        "retrieve": Action.READ,
        **dict.fromkeys(("create", "partial_update", "rotate", "revoke", "destroy"), Action.MANAGE_KEYS),
    }
    filters = {
        "tenant": OF_TENANT,
        "project": by_id("project_id"),
        "name": by_text("name"),
        "last4": by_text("last4", "The last four characters of the key."),
        "scope": by_choice({scope: partial(_has_scope, scope) for scope in KeyScope.values}),
        "state": by_choice(
            {
                "active": lambda: Q(revoked_at=None) & ~_over(),
                "expired": lambda: Q(revoked_at=None) & _over(),
                "revoked": lambda: Q(revoked_at__isnull=False),
            }
        ),
    }

    def get_queryset(self) -> QuerySet[ApiKey]:
        return ApiKey.objects.filter(self.mine())

    @extend_schema(summary="Create a key; it is shown once", request=shapes.KeyIn, responses={201: shapes.KeyShown})
    def create(self, request: Request) -> Response:
        body = self.body(shapes.KeyIn)
        projects = Project.objects.filter(self.mine(), deleted_at=None).select_related("tenant")
        project = self.named(projects, body.pop("project"), param="project")
        key, plaintext = services.create_key(project=project, **body, actor=actor_of(request))
        return self.answer(key, status=201, key=plaintext)

    @extend_schema(summary="Change a key", request=shapes.KeyPatch, responses=shapes.KeyOut)
    def partial_update(self, request: Request, pk: Any = None) -> Response:
        key, changes = self.to_change(must_match=True), self.body(shapes.KeyPatch, partial=True)
        return self.answer(services.change_key(key=key, changes=changes, actor=actor_of(request)))

    @extend_schema(
        summary="Give a key another text; the old one opens it for a while",
        description="The id, the limits and the usage of the key stay. `key` holds the new text, shown once.",
        request=shapes.RotateIn,
        responses={201: shapes.KeyShown},
    )
    @action(detail=True, methods=["post"])
    def rotate(self, request: Request, pk: Any = None) -> Response:
        key, form = self.to_change(), shapes.RotateIn(data=request.data)
        form.is_valid(raise_exception=True)
        rotated, plaintext = services.rotate_key(key=key, overlap=form.overlap(), actor=actor_of(request))
        return self.answer(rotated, status=201, key=plaintext)

    @extend_schema(summary="Revoke a key at once", request=shapes.ReasonIn, responses=shapes.KeyOut)
    @action(detail=True, methods=["post"])
    def revoke(self, request: Request, pk: Any = None) -> Response:
        key, reason = self.to_change(), self.body(shapes.ReasonIn)["reason"]
        return self.answer(services.revoke_key(key=key, reason=reason, actor=actor_of(request)))

    @extend_schema(summary="Revoke a key at once", responses={204: None})
    def destroy(self, request: Request, pk: Any = None) -> Response:
        services.revoke_key(key=self.to_change(), actor=actor_of(request))
        return Response(status=204)
