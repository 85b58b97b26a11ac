"""The management API as a program sees it."""

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.exceptions import DisallowedHost, RequestDataTooBig
from pytest_django import Settings

from tenants import services
from tenants.api.errors import openai_error
from tenants.auth.keys import digest
from tenants.models import ApiKey, LimitSetting, OutboxEvent, Plan
from tests.functional.tenants.api import Api, manager
from tests.functional.tenants.conftest import Customer

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("wired")]


@pytest.fixture
def acme_api(acme: Customer) -> Api:
    return manager(acme)


@pytest.fixture
def operator(db: None) -> Api:
    return Api(user=User.objects.create_superuser("ada", password="x"))


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


class TestKeys:
    def test_are_created_shown_once_and_revoked(self, acme: Customer, acme_api: Api) -> None:
        status, made = acme_api(
            "post", "keys", {"project": str(acme.project.id), "name": "ci", "allowed_models": ["m"]}
        )
        assert status == 201
        assert ApiKey.objects.get(id=made["id"]).digest == digest(made["key"], services.pepper())
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
        assert operator("post", "tenants", {"name": "acme", "plan": "basic"})[0] == 409
        assert operator("post", f"tenants/{made['id']}/suspend", {"reason": "unpaid"})[1]["state"] == "suspended"
        assert operator("post", f"tenants/{made['id']}/resume", {})[1]["state"] == "active"
        _, changed = operator.change(f"tenants/{made['id']}", {"timezone": "UTC", "queued_max": 7})
        assert (changed["timezone"], changed["queued_max"]) == ("UTC", 7)
        for zone in ("Mars", "localtime", "Factory", "posixrules", "../etc/passwd", "", "utc "):
            status, answer = operator.change(f"tenants/{made['id']}", {"timezone": zone})
            assert (status, answer["error"]["param"]) == (400, "timezone"), zone

    def test_change_their_own_settings_but_not_their_plan_queue_or_windows(self, acme: Customer, acme_api: Api) -> None:
        status, changed = acme_api.change(f"tenants/{acme.tenant.id}", {"evaluation_log": True})
        assert (status, changed["evaluation_log"]) == (200, True)
        for field, value in (("plan", "basic"), ("queued_max", 10_000), ("timezone", "Pacific/Kiritimati")):
            status, refused = acme_api.change(f"tenants/{acme.tenant.id}", {"name": "renamed", field: value})
            assert (status, refused["error"]["param"]) == (403, field)
            assert refused["error"]["type"] == "permission_error"
        acme.tenant.refresh_from_db()
        assert (acme.tenant.name, acme.tenant.queued_max, acme.tenant.timezone) == ("acme", None, "Asia/Kolkata")
        assert acme_api("post", f"tenants/{acme.tenant.id}/suspend", {})[0] == 403
        assert acme_api("post", "tenants", {"name": "x", "plan": "basic"})[0] == 403


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


class TestBodies:
    @pytest.mark.parametrize(
        ("body", "said"),
        [
            (b"[" * 100_000, "nested deeper than 32"),
            (b'{"a":' * 33 + b"1" + b"}" * 33, "nested deeper than 32"),
            (b'{"name": NaN}', "NaN is not a number"),
            (b'{"name": -Infinity}', "-Infinity is not a number"),
            (b'{"name": 1e999}', "too large"),
            (b'{"name": ' + b"9" * 5_000 + b"}", "a number has more than 100 digits"),
            (b'{"name": "a", "name": "b"}', "names `name` twice"),
            (b'{"\\ud800": 1}', "surrogate"),
            (b'{"name": "\xff"}', "not UTF-8"),
            (b'{"name": "x', "Unterminated string"),
            (b'"' + b'\\"' * 500_000, "Unterminated string"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_that_are_not_strict_json_are_a_400_that_says_why(self, acme_api: Api, body: bytes, said: str) -> None:
        status, answer = post(acme_api, body)
        assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
        assert said in answer["error"]["message"]
        assert set(answer["error"]) == {"message", "type", "param", "code"}

    def test_may_be_32_deep_and_may_hold_brackets_in_texts(self, acme_api: Api) -> None:
        status, answer = post(acme_api, b'{"a":' * 32 + b"1" + b"}" * 32)
        assert (status, answer["error"]["param"]) == (400, "a")
        status, answer = post(acme_api, b'{"name": "\\"' + b"[" * 100 + b'\\ud83d\\ude00"}')
        assert (status, answer["name"]) == (201, '"' + "[" * 100 + "\U0001f600")

    def test_may_be_one_mebibyte(self, acme_api: Api) -> None:
        body = b'{"name": "x"}'
        assert post(acme_api, body.ljust(2**20))[0] == 201
        status, answer = post(acme_api, body.ljust(2**20 + 1))
        assert (status, answer["error"]["code"]) == (413, "request_too_large")
        assert answer["error"]["type"] == "invalid_request_error"

    def test_are_refused_in_json_where_django_itself_finds_them_too_big(self) -> None:
        answer = openai_error(RequestDataTooBig("Request body exceeded"), {})
        assert answer is not None
        assert (answer.status_code, answer.data["error"]["code"]) == (413, "request_too_large")
        answer = openai_error(DisallowedHost("evil"), {})
        assert answer is not None
        assert (answer.status_code, answer.data["error"]["type"]) == (400, "invalid_request_error")

    def test_that_are_forms_are_refused_in_json_before_they_are_read(self, operator: Api, settings: Settings) -> None:
        operator._client.handler.enforce_csrf_checks = True
        operator._client.cookies[settings.CSRF_COOKIE_NAME] = "a" * 32
        form = "application/x-www-form-urlencoded"
        answer = operator._client.post("/api/v1/projects", data=b"a=" + b"x" * 3_000_000, content_type=form)
        assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")


def post(api: Api, body: bytes) -> tuple[int, Any]:
    answer = api._client.post("/api/v1/projects", data=body, content_type="application/json", headers=api._headers)
    return answer.status_code, answer.json()


class TestSchema:
    def test_is_openapi_and_knows_every_route(self, operator: Api) -> None:
        from drf_spectacular.generators import SchemaGenerator

        schema = SchemaGenerator().get_schema(request=None, public=True)
        assert {"/api/v1/tenants", "/api/v1/keys", "/api/v1/keys/{id}/revoke", "/api/v1/limits"} <= set(schema["paths"])
        assert schema["openapi"].startswith("3.1")
