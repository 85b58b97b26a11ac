"""What every route of the management API shares. A room's route is a subclass with its shapes, needs and filters.

Invariants: one transaction for each request, so that a refusal leaves nothing behind; a tenant's key or member is, from
the moment it is known, `weir_app` for its tenant in PostgreSQL itself, and every query begins at its tenant besides;
so a foreign id is a 404 on every route. A POST may be repeated by Idempotency-Key; a change may name the ETag that it
saw, and a PATCH must.
"""

from collections.abc import Mapping, Set
from contextlib import ExitStack
from functools import partial
from typing import Any, ClassVar, NoReturn, TypeVar

import uuid_utils
from django.db import IntegrityError, InterfaceError, InternalError, OperationalError, transaction
from django.db.models import Model, Q, QuerySet
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from rest_framework import viewsets
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from contracts.errors import InvalidRequest, NotFound
from tenants.api import repeats
from tenants.api.auth import Caller, ManagementKey, MayDo, SignedIn, caller_of
from tenants.api.errors import as_json, database_error
from tenants.api.lists import Filter, Keyset, StrictFilters, by_id
from tenants.api.parsers import StrictJSON
from tenants.api.shapes import Strict
from tenants.api.versions import check_match, etag_of, is_unchanged
from tenants.api.words import read_id, unknown_parameter
from tenants.models import Tenant
from tenants.roles import Action
from tenants.row_scope import as_tenant

M = TypeVar("M", bound=Model)
N = TypeVar("N", bound=Model)
OF_TENANT = by_id("tenant_id", "Rows of this tenant; of use to operators, who see every tenant's.")


class ByAccept(DefaultContentNegotiation):
    """The form of an answer, by `Accept` alone: `?format=` is a parameter like another, which no route knows."""

    def filter_renderers(self, renderers: Any, format: str) -> Any:
        return renderers


class Route(viewsets.GenericViewSet[M]):
    """`needs` names for each action what a role must be allowed; `filters` the query parameters of the list.

    `operators` says whose an action is that no role within a tenant may do.
    """

    authentication_classes = [ManagementKey, SignedIn]
    permission_classes = [MayDo]
    parser_classes = [StrictJSON]
    renderer_classes = [JSONRenderer]
    pagination_class = Keyset
    filter_backends = [StrictFilters]
    content_negotiation_class = ByAccept
    metadata_class = None
    lookup_value_converter = "uuid"
    http_method_names = ["get", "post", "patch", "delete", "head", "options"]
    needs: ClassVar[Mapping[str, Action]]
    filters: ClassVar[Mapping[str, Filter] | None] = None
    operators: ClassVar[str] = "operators"
    unkept: ClassVar[frozenset[str]] = frozenset()  # actions that change nothing, and whose answers are never stored

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """One transaction around everything, left as the login user that began it."""
        try:
            with transaction.atomic(), ExitStack() as self._scope:
                response = super().dispatch(request, *args, **kwargs)
                if response.status_code >= 400:
                    transaction.set_rollback(True)
        except (IntegrityError, OperationalError, InterfaceError, InternalError) as error:
            response = as_json(database_error(error))
        response.headers.setdefault("X-Request-ID", str(uuid_utils.uuid7()))
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    def perform_authentication(self, request: Request) -> None:
        """As soon as the caller is known, its own rows are all that there are."""
        super().perform_authentication(request)
        if isinstance(request.auth, Caller) and request.auth.tenant_id is not None:
            self._scope.enter_context(as_tenant(request.auth.tenant_id))

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """After authentication and permission: the first answer to a repeat. What a path takes, anybody may ask."""
        if request.method == "OPTIONS":
            return
        super().initial(request, *args, **kwargs)
        if request.method not in ("GET", "HEAD"):
            narrows = "tenant" in (self.filters or ())
            self.refuse_parameters(request, but={"tenant"} if narrows else set())
        kept = request.method == "POST" and self.action not in self.unkept
        if kept and repeats.HEADER in request.headers and "post" in vars(self):
            # `as_view` has put the action of this path there, and `dispatch` takes it from there next.
            vars(self)["post"] = partial(repeats.once, vars(self)["post"])

    def options(self, request: Request, *args: Any, **kwargs: Any) -> Response:  # type: ignore[override]
        """The methods of this path, in `Allow`, as on /v1."""
        return Response(status=204)

    def refuse_parameters(self, request: Request, *, but: Set[str] = frozenset()) -> None:
        """A change is told by its body: only `?tenant=` narrows it, where the route has tenants' rows."""
        for param in request.query_params:
            if param not in but:
                raise unknown_parameter(param)

    def permission_denied(self, request: Request, message: str | None = None, code: str | None = None) -> NoReturn:
        """A foreign id is not found, also by who may not do this to its own."""
        caller, wanted = request.auth, self.kwargs.get("pk")
        if wanted is not None and isinstance(caller, Caller) and caller.opens and not caller.is_operator:
            get_object_or_404(self.get_queryset(), pk=wanted)
        super().permission_denied(request, message, code)

    def tenants(self) -> QuerySet[Tenant]:
        """The tenants that the caller may see: its own, or all for an operator."""
        caller = caller_of(self.request)
        return Tenant.objects.all() if caller.tenant_id is None else Tenant.objects.filter(id=caller.tenant_id)

    def one_tenant(self, wanted: Any) -> Tenant:
        """The tenant named, or the caller's own. Raises Http404, and InvalidRequest when an operator names none."""
        if wanted is not None:
            return self.named(self.tenants(), wanted, param="tenant")
        if not caller_of(self.request).is_operator:
            return get_object_or_404(self.tenants())
        raise InvalidRequest("Name the tenant.", param="tenant", code="missing_required_parameter")

    def named(self, rows: QuerySet[N], wanted: Any, *, param: str) -> N:
        """The row that a field of the body names by its id. Raises NotFound with the field."""
        row = rows.filter(id=wanted).first()
        if row is None:
            raise NotFound("Not found.", param=param)
        return row

    def mine(self) -> Q:
        """Filter of a tenant-owned table: what the caller may see, narrowed by `?tenant=`."""
        caller = caller_of(self.request)
        allowed = Q() if caller.is_operator else Q(tenant_id=caller.tenant_id)
        wanted = self.request.query_params.get("tenant")
        return allowed if wanted is None else allowed & Q(tenant_id=read_id(wanted, param="tenant"))

    def body(self, shape: type[Strict], *, partial: bool = False) -> dict[str, Any]:
        """The checked body. Raises DRF's ValidationError, and InvalidRequest for a change that is not said at all."""
        if self.request.method == "PATCH" and self.request.stream is None:
            raise InvalidRequest("There is no body: send a JSON object of what is to change.", param="body")
        form = shape(data=self.request.data, partial=partial)
        form.is_valid(raise_exception=True)
        data: dict[str, Any] = form.validated_data
        return data

    def shown(self, row: M) -> dict[str, Any]:
        """A row as answers show it."""
        assert self.serializer_class is not None
        return dict(self.serializer_class(row).data)

    def answer(self, row: M, *, status: int = 200, **more: Any) -> Response:
        """One row with its ETag."""
        shown = self.shown(row)
        return Response({**shown, **more}, status=status, headers={"ETag": etag_of(shown)})

    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """One row, or 304 where If-None-Match names it as it is."""
        row = self.get_object()
        shown = self.shown(row)
        if is_unchanged(request, shown):
            return Response(status=304, headers={"ETag": etag_of(shown)})
        return Response(shown, headers={"ETag": etag_of(shown)})

    def to_change(self, *, must_match: bool = False) -> M:
        """The row that the path names, locked and as its author saw it. Raises Http404, Changed, MustMatch."""
        rows = self.get_queryset().select_for_update(of=("self",))
        row: M = get_object_or_404(rows, **{self.lookup_field: self.kwargs[self.lookup_field]})
        check_match(self.request, self.shown(row), required=must_match)
        return row
