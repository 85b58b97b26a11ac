"""Who may use the management API: an operator's admin session, or a key with the scope `manage` for its own tenant.

Invariant: an inference key opens nothing here; a management key sees its own tenant only, and another tenant's id is
answered like one that does not exist.
"""

from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db.models import Q, QuerySet
from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework import exceptions
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from tenants.actors import Actor
from tenants.auth.keys import digest, looks_valid
from tenants.auth.resolve import unknown_key
from tenants.models import ApiKey, KeyScope, Tenant, TenantState
from tenants.services import pepper

_READS = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """The caller behind a management key; stands where DRF expects a user."""

    key: ApiKey

    @property
    def is_authenticated(self) -> bool:
        return True


class ManagementKey(BaseAuthentication):
    """`Authorization: Bearer weir_…`. A look-up for each request: management is rare and must see the truth."""

    def authenticate(self, request: Request) -> tuple[KeyHolder, ApiKey] | None:
        """None where no bearer is given, so that a session may speak. Raises AuthenticationFailed for a bad key."""
        header = get_authorization_header(request).split()
        if not header or header[0].lower() != b"bearer":
            return None
        bearer = header[1].decode("latin-1") if len(header) == 2 else ""
        key = _find(bearer) if looks_valid(bearer) else None
        if key is None:
            raise exceptions.AuthenticationFailed(unknown_key().message)
        return KeyHolder(key), key

    def authenticate_header(self, request: Request) -> str:
        """Makes a missing credential a 401, not a 403."""
        return "Bearer"


class MayManage(BasePermission):
    """Management keys for their own tenant; staff by their Django permissions on tenants."""

    message = "This needs an operator's session or a key with the scope `manage`."

    def has_permission(self, request: Request, view: APIView) -> bool:
        if isinstance(request.auth, ApiKey):
            operator_only: frozenset[str] = getattr(view, "operator_actions", frozenset())
            return KeyScope.MANAGE in request.auth.scopes and getattr(view, "action", None) not in operator_only
        user = request.user
        if not isinstance(user, AbstractBaseUser) or not getattr(user, "is_staff", False):
            return False
        wanted = "tenants.view_tenant" if request.method in _READS else "tenants.change_tenant"
        return bool(user.has_perm(wanted))


def visible_tenants(request: Request) -> QuerySet[Tenant]:
    """The tenants that a caller may see: its own for a key, all for an operator."""
    if isinstance(request.auth, ApiKey):
        return Tenant.objects.filter(id=request.auth.tenant_id)
    return Tenant.objects.all()


def actor_of(request: Request) -> Actor:
    """Who acts, for the audit trail."""
    address = request.META.get("REMOTE_ADDR") or None
    if isinstance(request.auth, ApiKey):
        return Actor(name=f"key:…{request.auth.last4}", address=address)
    user = request.user
    name = "anonymous" if isinstance(user, AnonymousUser) else user.get_username()
    return Actor(name=f"user:{name}", address=address)


def _find(bearer: str) -> ApiKey | None:
    live = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
    return (
        ApiKey.objects.select_related("tenant")
        .filter(live, digest=digest(bearer, pepper()), revoked_at=None, tenant__state=TenantState.ACTIVE)
        .first()
    )


class ManagementKeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """How the OpenAPI file describes the key."""

    target_class = "tenants.api.auth.ManagementKey"
    name = "managementKey"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "description": "A key with the scope `manage`."}
