"""A program that speaks to the management API."""

from typing import Any

from django.contrib.auth.models import User
from django.test import Client

from tenants import services
from tenants.models import Role
from tests.functional.tenants.conftest import Customer


class Api:
    """A client that speaks JSON, with a bearer or a session. `last` is the whole answer of the last call."""

    def __init__(self, bearer: str | None = None, *, user: User | None = None, tenant: Any = None) -> None:
        self._client = Client(raise_request_exception=False)
        self._headers = {"authorization": f"Bearer {bearer}"} if bearer is not None else {}
        if tenant is not None:
            self._headers["weir-tenant"] = str(tenant)
        if user is not None:
            self._client.force_login(user)
        self.last: Any = None

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.last = getattr(self._client, method)(
            f"/api/v1/{path}",
            **({"data": body, "content_type": "application/json"} if body is not None else {}),
            headers={**self._headers, **named},
        )
        is_json = self.last.get("Content-Type", "").startswith("application/json")
        return self.last.status_code, self.last.json() if self.last.content and is_json else None

    def change(self, path: str, body: Any, method: str = "patch") -> tuple[int, Any]:
        """Reads, then changes what was read."""
        self("get", path)
        return self(method, path, body, if_match=self.last["ETag"])


def manager(who: Customer) -> Api:
    _, plaintext = services.create_key(project=who.project, name="manage", scopes=["manage"])
    return Api(plaintext)


def member(who: Customer, role: str, name: str | None = None) -> Api:
    user = User.objects.create_user(name or f"{who.tenant.name}-{role}", password="x")
    services.add_member(tenant=who.tenant, user=user, role=Role(role))
    return Api(user=user)
