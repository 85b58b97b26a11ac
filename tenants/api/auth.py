"""Who calls the management API: an operator, a member of a tenant, or a key with the scope `manage`.

Invariant: an inference key opens nothing here; a member and a management key see their own tenant only, and another
tenant's id is answered like one that does not exist. What no role is named for is refused.
"""

import uuid
from dataclasses import dataclass
from typing import Any, cast

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework import exceptions
from rest_framework.authentication import BaseAuthentication, SessionAuthentication, get_authorization_header
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from contracts.errors import InvalidRequest, NotFound, PermissionDenied
from tenants.actors import Actor
from tenants.api.words import is_uuid
from tenants.auth.keys import looks_valid
from tenants.auth.resolve import unknown_key
from tenants.models import KeyScope, Member, Role, TenantState
from tenants.roles import Action, may
from tenants.services.keys import digests_of, load_key, may_use_from, note_use

TENANT_HEADER = "Weir-Tenant"
_READS = frozenset({"GET", "HEAD"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks. `tenant_id` and `role` None: an operator, whose Django permissions decide."""

    name: str  # as the audit trail shows it
    identity: str  # what an Idempotency-Key is scoped to
    tenant_id: uuid.UUID | None = None
    role: Role | None = None
    user: AbstractBaseUser | None = None
    opens: bool = True  # False: a key that is known, but not for this

    @property
    def is_authenticated(self) -> bool:
        """What DRF asks of a user."""
        return True

    @property
    def is_operator(self) -> bool:
        return self.tenant_id is None


def caller_of(request: Request) -> Caller:
    """The caller that authentication found."""
    return cast("Caller", request.auth)


def actor_of(request: Request) -> Actor:
    """Who acts and from where, for the audit trail."""
    return Actor(name=caller_of(request).name, address=address_of(request))


def address_of(request: Request) -> str | None:
    return request.META.get("REMOTE_ADDR") or None


class ManagementKey(BaseAuthentication):
    """`Authorization: Bearer weir_…`. A look-up for each request: management is rare and must see the truth."""

    def authenticate(self, request: Request) -> tuple[Caller, Caller] | None:
        """None where no bearer is given, so that a session may speak. Raises AuthenticationFailed for a bad key."""
        header = get_authorization_header(request).split()
        if not header or header[0].lower() != b"bearer":
            return None
        bearer = header[1].decode("latin-1") if len(header) == 2 else ""
        key = load_key(digests_of(bearer)) if looks_valid(bearer) else None
        if key is None:
            raise exceptions.AuthenticationFailed(unknown_key().message)
        if not may_use_from(key, address_of(request)):
            raise PermissionDenied("This key may not be used from your network.", code="network_not_allowed")
        if KeyScope.MANAGE in key.scopes:
            note_use(key)
        caller = Caller(
            name=f"key:…{key.last4}",
            identity=f"key:{key.id}",
            tenant_id=key.tenant_id,
            role=Role.ADMIN,
            opens=KeyScope.MANAGE in key.scopes,
        )
        return caller, caller

    def authenticate_header(self, request: Request) -> str:
        """Makes a missing credential a 401, not a 403."""
        return "Bearer"


class SignedIn(SessionAuthentication):
    """A person's session: an operator, or a member of the tenant that `Weir-Tenant` names or that is the only one."""

    def authenticate(self, request: Request) -> tuple[Caller, Caller] | None:
        """None without a session. Raises what `_as_member` raises."""
        found = super().authenticate(request)
        if found is None:
            return None
        user = found[0]
        named = request.headers.get(TENANT_HEADER)
        if user.is_staff and named is None:
            name = f"user:{user.get_username()}"
            caller = Caller(name=name, identity=f"user:{user.pk}", user=user)
        else:
            caller = _as_member(user, named)
        return caller, caller


class MayDo(BasePermission):
    """Members and keys by their role; staff by their Django permissions on what the route shows, as in the console."""

    message = "This needs an operator's session, a member's role, or a key with the scope `manage`."

    def has_permission(self, request: Request, view: APIView) -> bool:
        """Where not, `message` says what would do: DRF asks an instance of its own for each request."""
        caller = request.auth
        if not isinstance(caller, Caller) or not caller.opens:
            return False
        if caller.role is not None:
            needs: dict[str, Action] = getattr(view, "needs", {})
            action = getattr(view, "action", None)
            needed = needs.get(str(action), Action.OPERATE)
            self.message = _who_may(needed, operators=getattr(view, "operators", "operators"))
            return action is None or may(caller.role, needed)
        permission = _permission(request, view)
        self.message = f"This needs the permission `{permission}`, which your roles do not have."
        return bool(cast("Any", caller.user).has_perm(permission))


def _who_may(needed: Action, *, operators: str) -> str:
    roles = [role.value for role in Role if may(role, needed)]
    if not roles:
        return f"This is for {operators} only."
    return f"This is for {operators} and members with one of these roles: {', '.join(roles)}."


def _permission(request: Request, view: APIView) -> str:
    """Of Django's own: to look at what the route shows, or to change it."""
    shown = cast("Any", view).queryset.model._meta  # noqa: SLF001 - Django's own API
    return f"{shown.app_label}.{'view' if request.method in _READS else 'change'}_{shown.model_name}"


def _as_member(user: Any, named: str | None) -> Caller:
    """The person as a member. Raises InvalidRequest, NotFound, PermissionDenied."""
    mine = Member.objects.filter(user_id=user.pk, deleted_at=None).exclude(tenant__state=TenantState.CLOSED)
    if named is not None:
        if not is_uuid(named):
            raise InvalidRequest("This is not an id.", param=TENANT_HEADER)
        mine = mine.filter(tenant_id=named)
    found = list(mine.select_related("tenant")[:2])
    if not found:
        if named is not None:
            raise NotFound("Not found.", param=TENANT_HEADER)
        raise PermissionDenied(MayDo.message)
    if len(found) > 1:
        raise InvalidRequest("You are a member of several tenants: name one in this header.", param=TENANT_HEADER)
    [member] = found
    if member.tenant.state == TenantState.SUSPENDED:
        raise PermissionDenied("This organization is suspended.", code="tenant_suspended")
    return Caller(
        name=f"user:{user.get_username()}",
        identity=f"user:{user.pk}@{member.tenant_id}",
        tenant_id=member.tenant_id,
        role=Role(member.role),
        user=user,
    )


class ManagementKeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """How the OpenAPI file describes the key."""

    target_class = "tenants.api.auth.ManagementKey"
    name = "managementKey"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "description": "A key with the scope `manage`."}


class SignedInScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """How the OpenAPI file describes a session."""

    target_class = "tenants.api.auth.SignedIn"
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {
            "type": "apiKey",
            "in": "cookie",
            "name": settings.SESSION_COOKIE_NAME,
            "description": "A signed-in operator or member; `Weir-Tenant` names the tenant of a member of several.",
        }
