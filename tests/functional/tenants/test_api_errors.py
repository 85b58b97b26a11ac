"""What the management API says of a request that is wrong: the sentence, the status, and what is wrong in `param`."""

from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.core.exceptions import TooManyFieldsSent
from django.db import IntegrityError, connection, transaction
from django.test import Client

from contracts.errors import LimitExceeded
from tenants import services
from tenants.api.errors import CONSTRAINTS, UNREACHABLE, openai_error
from tenants.models import Member, Plan, Project, Tenant
from tests.functional.tenants.api import Api, manager, member
from tests.functional.tenants.conftest import Customer

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("wired")]


@pytest.fixture
def api(acme: Customer) -> Api:
    return manager(acme)


@pytest.fixture
def operator(db: None) -> Api:
    return Api(user=User.objects.create_superuser("ada", password="x"))


def said(answer: Any) -> tuple[str | None, str]:
    return answer["error"]["param"], answer["error"]["message"]


class TestConstraints:
    def test_are_all_told_of_in_a_sentence_or_out_of_reach(self) -> None:
        names = {
            constraint.name
            for model in apps.get_app_config("tenants").get_models()
            for constraint in model._meta.constraints
        }
        names |= {
            f"{model._meta.db_table}_{field.column}_key"
            for model in apps.get_app_config("tenants").get_models()
            for field in model._meta.local_fields
            if field.unique and not field.primary_key
        }
        assert names == CONSTRAINTS.keys() | UNREACHABLE.keys()
        assert not CONSTRAINTS.keys() & UNREACHABLE.keys()

    def test_that_a_form_may_break_say_so_in_a_sentence_of_their_own(self) -> None:
        told = {
            constraint.name: (constraint.violation_error_code, constraint.violation_error_message)
            for model in (Tenant, Project, Member, Plan)
            for constraint in model._meta.constraints
        }
        assert {name: code for name, (code, _) in told.items()} == {name: name for name in told}
        assert not [message for _, message in told.values() if "Constraint" in message]

    def test_have_these_names_in_the_database(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT conname FROM pg_constraint UNION SELECT indexname FROM pg_indexes")
            known = {name for (name,) in cursor.fetchall()}
        assert (CONSTRAINTS.keys() | UNREACHABLE.keys()) <= known

    def test_a_project_of_that_name_exists(self, acme: Customer, api: Api) -> None:
        assert api("post", "projects", {"name": "two"})[0] == 201
        status, answer = api("post", "projects", {"name": "two"})
        assert (status, answer["error"]["type"]) == (409, "conflict_error")
        assert said(answer) == ("name", "A project named `two` exists already.")
        status, answer = api.change(f"projects/{acme.project.id}", {"name": "two"})
        assert (status, said(answer)) == (409, ("name", "A project named `two` exists already."))

    def test_a_tenant_a_plan_or_a_member_exists(self, acme: Customer, operator: Api) -> None:
        plan = Plan.objects.get(id=acme.tenant.plan_id)
        for path, body, param, message in (
            ("tenants", {"name": acme.tenant.name, "plan": plan.name}, "name", f"A tenant named `{acme.tenant.name}`"),
            ("plans", {"name": plan.name}, "name", f"A plan named `{plan.name}`"),
            ("members", {"tenant": str(acme.tenant.id), "user": "eve", "role": "viewer"}, "user", "`eve` is a member"),
        ):
            if path == "members":
                User.objects.create_user("eve", password="x")
                assert operator("post", path, body)[0] == 201
            status, answer = operator("post", path, body)
            assert (status, answer["error"]["param"]) == (409, param), path
            assert answer["error"]["message"].startswith(message)

    def test_are_told_of_alike_where_only_the_database_finds_them(self, acme: Customer) -> None:
        Project.objects.create(tenant=acme.tenant, name="two")
        with pytest.raises(IntegrityError) as raised, transaction.atomic():
            Project.objects.create(tenant=acme.tenant, name="two")
        answer = openai_error(raised.value, {})
        assert answer is not None
        assert (answer.status_code, said(answer.data)) == (409, ("name", "A project named this exists already."))

    def test_of_a_number_are_a_wrong_value(self, acme: Customer) -> None:
        with pytest.raises(IntegrityError) as raised, transaction.atomic():
            Plan.objects.filter(id=acme.tenant.plan_id).update(weight_milli=0)
        answer = openai_error(raised.value, {})
        assert answer is not None
        assert (answer.status_code, said(answer.data)) == (400, ("weight_milli", "At least 1."))


class TestChoices:
    @pytest.mark.parametrize("name", ["two\nlines", "\u202eecila", "tab\there", "\u2066x"])
    def test_names_that_could_show_themselves_as_others_are_refused(self, acme: Customer, api: Api, name: str) -> None:
        for path, whole in (("projects", {}), ("keys", {"project": str(acme.project.id)})):
            status, answer = api("post", path, whole | {"name": name})
            assert (status, answer["error"]["param"]) == (400, "name"), path

    @pytest.mark.parametrize(
        ("path", "body", "param", "choices"),
        [
            ("members", {"user": "x", "role": "king"}, "role", "owner, admin, developer, billing, viewer"),
            ("keys", {"name": "x", "scopes": ["all"]}, "scopes.0", "inference, manage"),
            ("budgets", {"scope": "key", "period": "week", "amount": "1"}, "period", "day, month, lifetime"),
            ("budgets", {"scope": "world", "period": "day", "amount": "1"}, "scope", "key, project, tenant"),
        ],
    )  # fmt: skip
    def test_are_all_named(self, acme: Customer, api: Api, path: str, body: Any, param: str, choices: str) -> None:
        whole = {"project": str(acme.project.id)} if path == "keys" else {}
        whole |= {"id": str(acme.project.id)} if path in ("limits", "budgets") else {}
        status, answer = api("post", path, whole | body)
        assert (status, answer["error"]["param"]) == (400, param)
        named = answer["error"]["message"].removeprefix("One of: ").removesuffix(".").split(", ")
        assert set(named) == set(choices.split(", "))

    def test_of_a_metric_too(self, acme: Customer, api: Api) -> None:
        body = {"scope": "project", "id": str(acme.project.id), "limits": [{"metric": "x", "cap": 1}]}
        param, message = said(api("post", "limits", body)[1])
        assert param == "limits.0.metric"
        assert "requests_per_minute" in message


class TestParam:
    @pytest.mark.parametrize(
        ("content", "kind", "status", "param"),
        [
            ("{", "application/json", 400, "body"),
            ("[]", "application/json", 400, "body"),
            ("null", "application/json", 400, "body"),
            ('"text"', "application/json", 400, "body"),
            ("name=x", "application/x-www-form-urlencoded", 415, "Content-Type"),
            ("{}", "text/plain", 415, "Content-Type"),
        ],
    )
    def test_names_the_body_or_its_type(self, acme: Customer, content: str, kind: str, status: int, param: str) -> None:
        _, bearer = services.create_key(project=acme.project, name="manage", scopes=["manage"])
        answer = Client().post(
            "/api/v1/projects", content, content_type=kind, headers={"authorization": f"Bearer {bearer}"}
        )
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)

    def test_names_what_is_not_there_by_the_field_that_names_it(self, api: Api) -> None:
        nobody = "0198c0de-0000-7000-8000-000000000000"
        for path, body, param in (
            ("keys", {"project": nobody, "name": "x"}, "project"),
            ("projects", {"tenant": nobody, "name": "x"}, "tenant"),
            ("limits", {"scope": "key", "id": nobody, "limits": [{"metric": "concurrent_requests", "cap": 1}]}, "id"),
        ):
            status, answer = api("post", path, body)
            assert (status, answer["error"]["param"]) == (404, param), path
        assert said(api("get", f"keys/{nobody}")[1])[0] == "path"
        assert said(api("delete", "keys")[1])[0] == "method"
        assert said(Api("weir_x")("get", "keys")[1])[0] == "Authorization"

    def test_names_the_field_of_what_json_leaves_open(self, api: Api) -> None:
        for body, param, why in (
            ('{"name": "a", "name": "b"}', "name", "an object names `name` twice"),
            ('{"limits": [{"cap": 1, "cap": 2}]}', "cap", "an object names `cap` twice"),
            ('{"a\\n": 1, "a\\n": 2}', "a\n", "an object names `a\N{REPLACEMENT CHARACTER}` twice"),
            ('{"\\ud800": 1, "\\ud800": 2}', "?", "an object names `\N{REPLACEMENT CHARACTER}` twice"),
            ('{"": 1, "": 2}', "body", "an object names `` twice"),
            ('{"name": NaN}', "name", "NaN is not a number of JSON"),
            ('{"limits": [{}, {"cap": -Infinity}]}', "limits.1.cap", "-Infinity is not a number of JSON"),
            ('{"limits": [1, 1e999]}', "limits.1", "a number is too large"),
            ("NaN", "body", "NaN is not a number of JSON"),
            ("[NaN]", "0", "NaN is not a number of JSON"),
            ('{"name": "\\ud800"}', "name", "a text holds half of a surrogate pair"),
            ('{"limits": [{"\\ud800": 1}]}', "limits.0", "a text holds half of a surrogate pair"),
            ('{"\\ud800": 1}', "body", "a text holds half of a surrogate pair"),
            (f'{{"name": {"9" * 5_001}}}', "name", "a number has more than 100 digits"),
            (f'{{"limits": [{{"cap": -{"9" * 101}}}]}}', "limits.0.cap", "a number has more than 100 digits"),
        ):
            answer = api._client.post("/api/v1/projects", body, content_type="application/json", headers=api._headers)
            says = f"The body is not the JSON that this API reads: {why}."
            assert (answer.status_code, said(answer.json())) == (400, (param, says)), body[:60]

    def test_names_the_body_of_a_change_that_has_none(self, acme: Customer, api: Api) -> None:
        for path in (f"projects/{acme.project.id}", f"keys/{acme.key.id}", f"tenants/{acme.tenant.id}"):
            api("get", path)
            status, answer = api("patch", path, if_match=api.last["ETag"])
            assert (status, said(answer)) == (
                400, ("body", "There is no body: send a JSON object of what is to change."),
            )  # fmt: skip

    def test_names_nothing_where_no_field_can_mend_it(self, acme: Customer, api: Api) -> None:
        services.revoke_key(key=acme.key)
        status, answer = api("post", f"keys/{acme.key.id}/rotate", {})
        assert (status, said(answer)) == (409, (None, "This key was revoked or has expired; make a new one."))
        assert (answer["error"]["type"], answer["error"]["code"]) == ("conflict_error", "conflict")

    @pytest.mark.parametrize("path", ["/api/v1/projects", "/api/schema", "/api/docs/", "/api/v1/finance/usage"])
    def test_names_the_query_where_it_has_too_many_parameters(self, api: Api, path: str) -> None:
        answer = Client().get(f"{path}?{'a=1&' * 1_001}", headers=api._headers)
        assert (answer.status_code, said(answer.json())) == (400, ("query", "More than 1,000 parameters."))
        assert answer["Content-Type"] == "application/json"

    def test_names_the_body_of_a_form_that_has_too_many_fields(self) -> None:
        answer = openai_error(TooManyFieldsSent(), {})
        assert answer is not None
        assert (answer.status_code, said(answer.data)) == (400, ("body", "More than 1,000 parameters."))

    def test_names_a_parameter_of_a_change_that_is_not_known(self, api: Api) -> None:
        status, answer = api("post", "projects?dry_run=true", {"name": "x"})
        assert (status, answer["error"]["param"], answer["error"]["code"]) == (400, "dry_run", "unknown_parameter")
        assert api("get", "projects?name=x")[1]["data"] == []


class TestMessages:
    def test_say_who_may_what_the_caller_may_not(self, acme: Customer, api: Api) -> None:
        viewer = member(acme, "viewer")
        for who, method, path, says in (
            (api, "get", "finance/usage", "This is for operators of finance only."),
            (api, "get", "finance/receivables", "This is for operators of finance only."),
            (api, "post", "tenants", "This is for operators only."),
            (api, "post", "plans", "This is for operators only."),
            (api, "post", f"tenants/{acme.tenant.id}/resume", "This is for operators only."),
            (viewer, "post", "projects",
             "This is for operators and members with one of these roles: owner, admin, developer."),
            (viewer, "get", "audit", "This is for operators and members with one of these roles: owner, admin."),
            (Api(acme.plaintext), "get", "projects",
             "This needs an operator's session, a member's role, or a key with the scope `manage`."),
        ):  # fmt: skip
            status, answer = who(method, path, {} if method == "post" else None)
            assert (status, said(answer)) == (403, ("Authorization", says)), path

    def test_name_the_permission_that_an_operator_has_not(self, acme: Customer) -> None:
        support = Api(user=User.objects.create_user("sue", password="x", is_staff=True))
        status, answer = support("get", "finance/usage")
        says = "This needs the permission `billing.view_invoice`, which your roles do not have."
        assert (status, said(answer)) == (403, ("Authorization", says))


class TestOptions:
    def test_are_the_methods_of_a_path_for_whoever_asks(self, acme: Customer, api: Api) -> None:
        for path, methods in (
            ("projects", "GET, POST, HEAD, OPTIONS"),
            (f"projects/{acme.project.id}", "GET, PATCH, DELETE, HEAD, OPTIONS"),
            ("finance/usage", "GET, HEAD, OPTIONS"),
            ("capacity", "POST, OPTIONS"),
        ):
            for who in (api, Api()):
                assert who("options", path) == (204, None)
                assert who.last["Allow"] == methods

    @pytest.mark.parametrize("path", ["/api/schema", "/api/docs/", "/api/docs/inference/"])
    def test_are_told_of_the_documents_too(self, path: str) -> None:
        answer = Client().options(path)
        assert (answer.status_code, answer.content, answer["Allow"]) == (204, b"", "GET, HEAD, OPTIONS")


class TestForms:
    @pytest.mark.parametrize(
        ("path", "headers", "status", "param"),
        [
            ("/api/schema?format=evil", {}, 404, "format"),
            ("/api/schema?lang=de", {}, 400, "lang"),
            ("/api/schema", {"accept": "text/html"}, 406, "Accept"),
            ("/api/docs/?format=evil", {}, 400, "format"),
            ("/api/docs/", {"accept": "image/png"}, 406, "Accept"),
            ("/api/v1/keys?format=evil", {}, 401, "Authorization"),
            ("/api/v1/keys", {"accept": "application/xml"}, 406, "Accept"),
        ],
    )
    def test_that_are_not_served_are_refused_in_json(
        self, path: str, headers: dict[str, str], status: int, param: str
    ) -> None:
        answer = Client().get(path, headers=headers)
        assert (answer.status_code, answer["Content-Type"]) == (status, "application/json")
        assert answer.json()["error"]["param"] == param

    @pytest.mark.parametrize("form", ["html", "json", "api"])
    def test_are_no_parameter_of_a_route(self, acme: Customer, api: Api, form: str) -> None:
        for path in ("projects", f"projects/{acme.project.id}"):
            status, answer = api("get", f"{path}?format={form}")
            assert (status, said(answer), answer["error"]["code"]) == (
                400, ("format", "This parameter is not known."), "unknown_parameter",
            )  # fmt: skip

    @pytest.mark.parametrize("form", ["json", "yaml"])
    def test_that_are_served(self, form: str) -> None:
        answer = Client().get(f"/api/schema?format={form}")
        assert (answer.status_code, form in answer["Content-Disposition"]) == (200, True)


class TestWaits:
    def test_are_told_in_whole_seconds_never_too_short(self) -> None:
        answer = openai_error(LimitExceeded("Too many.", retry_after_ms=59_001), {})
        assert answer is not None
        assert (answer.status_code, answer["Retry-After"]) == (429, "60")
