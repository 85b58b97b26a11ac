"""What the management API says of a request that is wrong: the sentence, the status, and what is wrong in `param`."""

from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.db import IntegrityError, connection, transaction
from django.test import Client

from contracts.errors import LimitExceeded
from tenants import services
from tenants.api.errors import CONSTRAINTS, UNREACHABLE, openai_error
from tenants.models import Member, Plan, Project, Tenant
from tests.functional.tenants.api import Api, manager
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
            ('{"a":1,"a":2}', "application/json", 400, "body"),
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

    def test_names_a_parameter_of_a_change_that_is_not_known(self, api: Api) -> None:
        status, answer = api("post", "projects?dry_run=true", {"name": "x"})
        assert (status, answer["error"]["param"]) == (400, "dry_run")
        assert api("get", "projects?name=x")[1]["data"] == []


class TestForms:
    @pytest.mark.parametrize(
        ("path", "headers", "status", "param"),
        [
            ("/api/schema?format=evil", {}, 404, "format"),
            ("/api/schema?lang=de", {}, 400, "lang"),
            ("/api/schema", {"accept": "text/html"}, 406, "Accept"),
            ("/api/docs/?format=evil", {}, 400, "format"),
            ("/api/docs/", {"accept": "image/png"}, 406, "Accept"),
            ("/api/v1/keys?format=evil", {}, 404, "path"),
            ("/api/v1/keys", {"accept": "application/xml"}, 406, "Accept"),
        ],
    )
    def test_that_are_not_served_are_refused_in_json(
        self, path: str, headers: dict[str, str], status: int, param: str
    ) -> None:
        answer = Client().get(path, headers=headers)
        assert (answer.status_code, answer["Content-Type"]) == (status, "application/json")
        assert answer.json()["error"]["param"] == param

    @pytest.mark.parametrize("form", ["json", "yaml"])
    def test_that_are_served(self, form: str) -> None:
        answer = Client().get(f"/api/schema?format={form}")
        assert (answer.status_code, form in answer["Content-Disposition"]) == (200, True)


class TestWaits:
    def test_are_told_in_whole_seconds_never_too_short(self) -> None:
        answer = openai_error(LimitExceeded("Too many.", retry_after_ms=59_001), {})
        assert answer is not None
        assert (answer.status_code, answer["Retry-After"]) == (429, "60")
