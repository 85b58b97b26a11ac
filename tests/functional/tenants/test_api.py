"""The management API as a program sees it."""

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from tenants import events, services
from tenants.models import ApiKey, LimitSetting, OutboxEvent, Plan
from tests.functional.tenants.conftest import Customer

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("wired")]


class Api:
    """A client that speaks JSON with a bearer."""

    def __init__(self, bearer: str | None) -> None:
        self._client = Client(raise_request_exception=False)
        self._headers = {"authorization": f"Bearer {bearer}"} if bearer is not None else {}

    def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        answer = getattr(self._client, method)(
            f"/api/v1/{path}",
            **({"data": body, "content_type": "application/json"} if body is not None else {}),
            headers=self._headers,
        )
        return answer.status_code, answer.json() if answer.content else None


def manager(who: Customer) -> Api:
    _, plaintext = services.create_key(project=who.project, name="manage", scopes=["manage"])
    return Api(plaintext)


@pytest.fixture
def acme_api(acme: Customer) -> Api:
    return manager(acme)


@pytest.fixture
def operator(db: None) -> Api:
    api = Api(None)
    api._client.force_login(User.objects.create_superuser("ada", password="x"))
    return api


class TestAuth:
    def test_answers_unknown_malformed_revoked_and_expired_keys_alike(self, acme: Customer) -> None:
        key, plaintext = services.create_key(project=acme.project, name="manage", scopes=["manage"])
        services.revoke_key(key=key)
        bodies = [Api(bearer)("get", "tenants") for bearer in (plaintext, "weir_x", "", "ü", "' OR 1=1 --")]
        assert {status for status, _ in bodies} == {401}
        assert len({str(body) for _, body in bodies}) == 1
        assert bodies[0][1]["error"]["code"] == "invalid_api_key"

    def test_wants_a_credential(self, db: None) -> None:
        status, body = Api(None)("get", "tenants")
        assert (status, body["error"]["type"]) == (401, "authentication_error")

    def test_an_inference_key_opens_nothing(self, acme: Customer) -> None:
        assert Api(acme.plaintext)("get", "tenants")[0] == 403

    def test_a_suspended_tenants_key_is_refused(self, acme: Customer, acme_api: Api) -> None:
        services.suspend_tenant(tenant=acme.tenant)
        assert acme_api("get", "tenants")[0] == 401

    def test_staff_needs_the_permission(self, acme: Customer) -> None:
        api = Api(None)
        user = User.objects.create_user("bob", password="x", is_staff=True)
        api._client.force_login(user)
        assert api("get", "tenants")[0] == 403
        user.user_permissions.add(Permission.objects.get(codename="view_tenant"))
        assert api("get", "tenants")[0] == 200
        assert api("post", f"tenants/{acme.tenant.id}/suspend", {})[0] == 403


class TestForeignIds:
    def test_are_not_found_on_every_route(self, acme_api: Api, mallory: Customer) -> None:
        tenant, project, key = mallory.tenant.id, mallory.project.id, mallory.key.id
        for method, path, body in (
            ("get", f"tenants/{tenant}", None),
            ("patch", f"tenants/{tenant}", {"name": "x"}),
            ("get", f"projects/{project}", None),
            ("delete", f"projects/{project}", None),
            ("post", "projects", {"tenant": str(tenant), "name": "x"}),
            ("get", f"keys/{key}", None),
            ("delete", f"keys/{key}", None),
            ("post", f"keys/{key}/revoke", {}),
            ("post", "keys", {"project": str(project), "name": "x"}),
            ("post", "limits", {"scope": "key", "id": str(key), "limits": [{"metric": "tokens_per_day", "cap": 1}]}),
            (
                "post",
                "limits",
                {"scope": "project", "id": str(project), "limits": [{"metric": "tokens_per_day", "cap": 1}]},
            ),
        ):
            status, answer = acme_api(method, path, body)
            assert (status, answer["error"]["code"]) == (404, "not_found"), (method, path)
        for path in ("tenants", "projects", "keys", "limits", "audit"):
            status, answer = acme_api("get", f"{path}?tenant={tenant}" if path != "tenants" else path)
            assert status == 200
            assert str(tenant) not in str(answer)
        mallory.key.refresh_from_db()
        assert mallory.key.revoked_at is None


class TestKeys:
    def test_are_created_shown_once_and_revoked(self, acme: Customer, acme_api: Api) -> None:
        status, made = acme_api(
            "post", "keys", {"project": str(acme.project.id), "name": "ci", "allowed_models": ["m"]}
        )
        assert status == 201
        assert ApiKey.objects.get(id=made["id"]).digest == services.digest(made["key"], services.pepper())
        status, read = acme_api("get", f"keys/{made['id']}")
        assert status == 200
        assert "key" not in read
        assert "digest" not in read
        assert (read["last4"], read["allowed_models"]) == (made["key"][-4:], ["m"])
        status, revoked = acme_api("post", f"keys/{made['id']}/revoke", {"reason": "leaked"})
        assert status == 200
        assert revoked["revoked_at"] is not None
        event = OutboxEvent.objects.get(name="key.revoked")
        assert event.body["after"] == {"reason": "leaked"}
        assert event.body["actor"].startswith("key:…")

    def test_refuses_what_it_does_not_know(self, acme: Customer, acme_api: Api) -> None:
        project = str(acme.project.id)
        for body, param in (
            ({"name": "x"}, "project"),
            ({"project": project, "name": "x", "colour": "red"}, "colour"),
            ({"project": project, "name": "x", "scopes": ["root"]}, "scopes.0"),
            ({"project": project, "name": "x", "scopes": ["inference", "manage"]}, "scopes"),
            ({"project": project, "name": "x", "expires_at": "2001-01-01T00:00:00Z"}, "expires_at"),
            ({"project": project, "name": ""}, "name"),
        ):
            status, answer = acme_api("post", "keys", body)
            assert (status, answer["error"]["param"]) == (400, param)
            assert answer["error"]["type"] == "invalid_request_error"


class TestLimits:
    def test_are_set_on_own_keys_and_projects_and_on_the_tenant_by_an_operator(
        self, acme: Customer, acme_api: Api, operator: Api
    ) -> None:
        limits = [{"metric": "tokens_per_day", "cap": 10}, {"metric": "spend_per_day", "cap": 0}]
        body = {"scope": "key", "id": str(acme.key.id), "limits": limits}
        status, rows = acme_api("post", "limits", body)
        assert status == 200
        assert {row["metric"]: row["cap"] for row in rows} == {"tokens_per_day": 10, "spend_per_day": 0}
        body["limits"] = [{"metric": "tokens_per_day", "cap": None}]
        assert len(acme_api("post", "limits", body)[1]) == 1
        whole = {"scope": "tenant", "id": str(acme.tenant.id), "limits": limits}
        assert acme_api("post", "limits", whole)[0] == 403
        assert operator("post", "limits", whole)[0] == 200
        assert LimitSetting.objects.filter(tenant=acme.tenant, scope="tenant").count() == 2

    def test_name_the_field_that_is_wrong(self, acme: Customer, acme_api: Api) -> None:
        for limits, param in (
            ([{"metric": "wishes", "cap": 1}], "limits.0.metric"),
            ([{"metric": "tokens_per_day", "cap": -1}], "limits.0.cap"),
            ([{"metric": "tokens_per_day", "cap": 2**64}], "limits.0.cap"),
            ([{"metric": "tokens_per_day"}], "limits.0.cap"),
            ([], "limits"),
            ([{"metric": "requests_per_minute", "cap": 10**14}], "cap"),
        ):
            status, answer = acme_api("post", "limits", {"scope": "key", "id": str(acme.key.id), "limits": limits})
            assert (status, answer["error"]["param"]) == (400, param), answer


class TestTenants:
    def test_are_made_and_moved_by_operators(self, operator: Api, plan: Plan) -> None:
        status, made = operator("post", "tenants", {"name": "acme", "plan": "basic", "timezone": "Europe/Berlin"})
        assert (status, made["state"], made["plan"]) == (201, "active", "basic")
        assert operator("post", "tenants", {"name": "acme", "plan": "basic"})[0] == 400
        assert operator("post", f"tenants/{made['id']}/suspend", {"reason": "unpaid"})[1]["state"] == "suspended"
        assert operator("post", f"tenants/{made['id']}/resume", {})[1]["state"] == "active"
        assert operator("patch", f"tenants/{made['id']}", {"timezone": "Mars"})[1]["error"]["param"] == "timezone"

    def test_change_their_own_settings_but_not_their_plan(self, acme: Customer, acme_api: Api) -> None:
        status, changed = acme_api("patch", f"tenants/{acme.tenant.id}", {"evaluation_log": True})
        assert (status, changed["evaluation_log"]) == (200, True)
        assert acme_api("patch", f"tenants/{acme.tenant.id}", {"plan": "basic"})[0] == 403
        assert acme_api("post", f"tenants/{acme.tenant.id}/suspend", {})[0] == 403
        assert acme_api("post", "tenants", {"name": "x", "plan": "basic"})[0] == 403


class TestPages:
    def test_are_followed_by_cursor_and_stable_while_rows_are_added(self, acme: Customer, acme_api: Api) -> None:
        for number in range(5):
            services.create_project(tenant=acme.tenant, name=f"p{number}")
        _, first = acme_api("get", "projects?limit=4")
        services.create_project(tenant=acme.tenant, name="late")
        _, second = acme_api("get", first["next"].split("/api/v1/")[1])
        names = [row["name"] for row in first["results"] + second["results"]]
        assert names == ["p4", "p3", "p2", "p1", "p0", "default"]

    def test_audit_shows_own_entries(self, acme: Customer, mallory: Customer, acme_api: Api) -> None:
        for row in OutboxEvent.objects.all():
            events.keep(events.message_of(row))
        _, page = acme_api("get", "audit")
        assert {row["tenant_id"] for row in page["results"]} == {str(acme.tenant.id)}


class TestErrors:
    def test_are_json_for_bad_json_types_and_methods(self, acme_api: Api, acme: Customer) -> None:
        client = acme_api._client
        for body in ("{", "[]", "null", '"x"', '{"name": NaN}'):
            answer = client.post(
                "/api/v1/projects", data=body, content_type="application/json", headers=acme_api._headers
            )
            assert answer.status_code == 400, body
            assert answer.json()["error"]["type"] == "invalid_request_error"
        answer = client.post("/api/v1/projects", data="x", content_type="text/plain", headers=acme_api._headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")
        assert acme_api("put", f"keys/{acme.key.id}", {})[0] == 405
        assert acme_api("get", "keys/not-an-id")[0] == 404


class TestSchema:
    def test_is_openapi_and_knows_every_route(self, operator: Api) -> None:
        from drf_spectacular.generators import SchemaGenerator

        schema = SchemaGenerator().get_schema(request=None, public=True)
        assert {"/api/v1/tenants", "/api/v1/keys", "/api/v1/keys/{id}/revoke", "/api/v1/limits"} <= set(schema["paths"])
        assert schema["openapi"].startswith("3.1")
