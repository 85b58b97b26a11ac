"""The OpenAPI file of the management API, and requests made from it (schemathesis): no 500, every answer as it says.

WEIR_FUZZ_EXAMPLES asks for more of each than the few that a whole run of the tests has time for.
"""

import os
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import schemathesis
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections, transaction
from django.test import Client
from drf_spectacular.generators import SchemaGenerator
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error, response_schema_conformance, status_code_conformance

from tenants import services
from tests.functional.tenants.conftest import Customer
from tests.functional.tenants.test_matrix import furnish

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("wired")]

PREFIX = "/api/v1/"
EXAMPLES = int(os.environ.get("WEIR_FUZZ_EXAMPLES", "8"))
METHODS = frozenset({"get", "post", "patch", "delete"})
CHECKS = [not_a_server_error, response_schema_conformance, status_code_conformance]


def document() -> dict[str, Any]:
    found: dict[str, Any] = SchemaGenerator().get_schema(request=None, public=True)
    return found


@cache
def loaded() -> Any:
    """The file as a client loads it, once."""
    schema = schemathesis.openapi.from_wsgi("/api/schema", get_wsgi_application())
    schema.config.generation.update(with_security_parameters=False)  # the tests bring their own
    return schema


OPERATIONS = sorted(
    (path, method) for path, one in document()["paths"].items() if path.startswith(PREFIX) for method in one
)


class TestFile:
    def test_says_what_may_be_refused_and_how_writes_repeat(self) -> None:
        for path, methods in document()["paths"].items():
            for method in METHODS & methods.keys() if path.startswith(PREFIX) else ():
                operation = methods[method]
                headers = {one["name"] for one in operation["parameters"] if one["in"] == "header"}
                assert "4XX" in operation["responses"], path
                assert ("Idempotency-Key" in headers) == (method == "post"), path
                assert ("If-Match" in headers) == ("{id}" in path and method != "get"), (path, method)

    def test_offers_filters_and_pages_to_a_list_alone(self) -> None:
        for path, methods in document()["paths"].items():
            for method in METHODS & methods.keys() if path.startswith(PREFIX) else ():
                asked = {one["name"] for one in methods[method]["parameters"] if one["in"] == "query"}
                assert ("limit" in asked) == (method == "get" and "List" in repr(methods[method]["responses"])), path
                assert not asked or method == "get", (path, method)

    @pytest.mark.parametrize("path", ["limits", "budgets"])
    def test_says_what_is_answered_where_a_post_answers_with_several_rows(self, path: str) -> None:
        responses = document()["paths"][PREFIX + path]["post"]["responses"]
        assert [status for status in responses if status < "3"] == ["200"]
        assert responses["200"]["content"]["application/json"]["schema"]["type"] == "array"

    def test_is_served_with_a_page_that_loads_nothing_from_elsewhere(self) -> None:
        client = Client()
        client.force_login(User.objects.create_superuser("ada", password="x"))
        assert client.get("/api/schema").status_code == 200
        for path in ("/api/docs/", "/api/docs/inference/"):
            page = client.get(path).content.decode()
            assert "swagger-ui" in page
            assert "://" not in page.replace("http://www.w3.org/", "")

    def test_has_a_page_for_the_inference_api_beside_it(self) -> None:
        script = Client().get("/api/docs/inference/?script=").content.decode()
        assert "/v1/openapi.json" in script.replace("\\u002D", "-")
        assert "/api/docs/inference/" in document()["info"]["description"]


@pytest.fixture
def one_connection() -> Iterator[None]:
    """A request in this process leaves the test's own transaction open, as Django's test client has it."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


@pytest.mark.usefixtures("one_connection")
class TestRequestsFromTheFile:
    @pytest.mark.parametrize("who", ["key", "operator"])
    @pytest.mark.parametrize(("path", "method"), OPERATIONS, ids=lambda part: str(part))
    def test_get_no_500_and_what_the_file_says(self, acme: Customer, path: str, method: str, who: str) -> None:
        furnish(acme)
        credentials = self.credentials(acme, who)
        statuses: set[int] = set()
        own = st.sampled_from([str(acme.tenant.id), str(acme.project.id), str(acme.key.id)])

        @settings(
            max_examples=EXAMPLES, derandomize=True, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=loaded()[path][method].as_strategy(), known=st.booleans(), row=own)
        def ask(case: schemathesis.Case, known: bool, row: str) -> None:
            if known and "id" in (case.path_parameters or {}):
                case.path_parameters["id"] = row
            with transaction.atomic():
                answer = case.call_and_validate(**credentials, checks=CHECKS)
                assert answer.status_code != 401
                statuses.add(answer.status_code)
                transaction.set_rollback(True)

        ask()
        if path.count("/") == 3 and method == "get":
            assert 200 in statuses

    def credentials(self, acme: Customer, who: str) -> dict[str, Any]:
        if who == "key":
            _, plaintext = services.create_key(project=acme.project, name="manage", scopes=["manage"])
            return {"headers": {"Authorization": f"Bearer {plaintext}"}}
        client = Client()
        client.force_login(User.objects.create_superuser("ada", password="x"))
        token = "a" * 32
        cookies = {name: one.value for name, one in client.cookies.items()}
        return {"headers": {"X-CSRFToken": token}, "cookies": {**cookies, django_settings.CSRF_COOKIE_NAME: token}}
