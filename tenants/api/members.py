"""Routes of members: who in a tenant has which role."""

from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import mixins
from rest_framework.request import Request
from rest_framework.response import Response

from tenants import services
from tenants.api import shapes
from tenants.api.auth import actor_of, caller_of
from tenants.api.lists import by_text, by_value
from tenants.api.routes import OF_TENANT, Route
from tenants.models import Member, Role
from tenants.roles import Action


@extend_schema_view(list=extend_schema(summary="List members"), retrieve=extend_schema(summary="Read a member"))
class MemberRoute(mixins.ListModelMixin, Route[Member]):
    serializer_class = shapes.MemberOut
    queryset = Member.objects.all()
    needs = {
        "list": Action.READ,
        "retrieve": Action.READ,
        **dict.fromkeys(("create", "partial_update"), Action.MANAGE_MEMBERS),
        "destroy": Action.READ,  # anybody may leave; whom else one may remove, the service asks
    }
    filters = {
        "tenant": OF_TENANT,
        "user": by_text("user__username", "By user name."),
        "role": by_value("role", Role.values),
    }

    def get_queryset(self) -> QuerySet[Member]:
        # Of a person only the columns that a tenant may read.
        shown = Member.objects.filter(self.mine(), deleted_at=None).select_related("user")
        return shown.defer(
            *(f"user__{name}" for name in ("password", "last_login", "is_superuser", "is_staff", "date_joined"))
        )

    @extend_schema(summary="Add a member", request=shapes.MemberIn, responses={201: shapes.MemberOut})
    def create(self, request: Request) -> Response:
        body = self.body(shapes.MemberIn)
        tenant = self.one_tenant(body.get("tenant"))
        people = get_user_model().objects.only("id", "username", "email", "is_active")
        person = people.filter(username=body["user"], is_active=True).first()
        if person is None:
            raise ValidationError({"user": "Nobody of this name signs in here."})
        by = caller_of(request).role
        member = services.add_member(tenant=tenant, user=person, role=body["role"], actor=actor_of(request), by=by)
        return self.answer(self.get_queryset().get(id=member.id), status=201)

    @extend_schema(summary="Give a member another role", request=shapes.MemberPatch, responses=shapes.MemberOut)
    def partial_update(self, request: Request, pk: Any = None) -> Response:
        member, role = self.to_change(must_match=True), self.body(shapes.MemberPatch)["role"]
        services.change_member(member=member, role=role, actor=actor_of(request), by=caller_of(request).role)
        return self.answer(self.get_queryset().get(id=member.id))

    @extend_schema(summary="Remove a member, or leave", responses={204: None})
    def destroy(self, request: Request, pk: Any = None) -> Response:
        member, caller = self.to_change(), caller_of(request)
        leaves = caller.role is not None and caller.user is not None and caller.user.pk == member.user_id
        services.remove_member(member=member, actor=actor_of(request), by=caller.role, leaves=leaves)
        return Response(status=204)
