"""Lists of the management API: pages by key, filters, and what is refused by name."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from redis import Redis

from tenants import events, services
from tenants.models import OutboxEvent
from tests.functional.tenants.api import Api, manager
from tests.functional.tenants.conftest import Customer

pytestmark = pytest.mark.django_db


@pytest.fixture
def api(acme: Customer, wired: Redis) -> Api:
    return manager(acme)


def names(page: Any) -> list[str]:
    return [row["name"] for row in page["data"]]


class TestPages:
    def test_are_followed_by_the_last_id_and_stable_while_rows_are_added(self, acme: Customer, api: Api) -> None:
        for number in range(5):
            services.create_project(tenant=acme.tenant, name=f"p{number}")
        _, first = api("get", "projects?limit=4")
        services.create_project(tenant=acme.tenant, name="late")
        _, second = api("get", f"projects?limit=4&after={first['last_id']}")
        assert names(first) + names(second) == ["p4", "p3", "p2", "p1", "p0", "default"]
        assert (first["object"], first["has_more"], second["has_more"]) == ("list", True, False)
        assert (first["first_id"], first["last_id"]) == (first["data"][0]["id"], first["data"][-1]["id"])
        _, beyond = api("get", f"projects?after={second['last_id']}")
        assert (beyond["data"], beyond["first_id"], beyond["has_more"]) == ([], None, False)

    @pytest.mark.parametrize(
        ("query", "param"),
        [
            ("limit=0", "limit"),
            ("limit=201", "limit"),
            ("limit=-1", "limit"),
            ("limit=abc", "limit"),
            ("limit=1.5", "limit"),
            ("limit=", "limit"),
            ("limit=%D9%A3", "limit"),  # an Arabic three is a digit to int()
            ("limit=99999999999999999999", "limit"),
            ("limit=1&limit=2", "limit"),
            ("after=x", "after"),
            ("after=", "after"),
            ("after=00000000", "after"),
            ("cursor=abc", "cursor"),
            ("colour=red", "colour"),
            ("tenant=1", "tenant"),
            ("name=%00", "name"),
        ],
    )
    def test_refuse_a_wrong_parameter_by_its_name(self, api: Api, query: str, param: str) -> None:
        status, answer = api("get", f"projects?{query}")
        code = "unknown_parameter" if param in ("cursor", "colour") else "invalid_value"
        assert (status, answer["error"]["param"], answer["error"]["code"]) == (400, param, code)


class TestFilters:
    def test_of_keys_select_by_project_scope_and_state(self, acme: Customer, api: Api) -> None:
        other = services.create_project(tenant=acme.tenant, name="other")
        second, _ = services.create_key(project=other, name="second")
        services.revoke_key(key=acme.key)
        assert names(api("get", f"keys?project={other.id}")[1]) == ["second"]
        assert names(api("get", "keys?scope=manage")[1]) == ["manage"]
        assert names(api("get", "keys?state=revoked")[1]) == ["first"]
        assert names(api("get", "keys?state=active&scope=inference")[1]) == ["second"]
        assert names(api("get", "keys?state=expired")[1]) == []
        assert names(api("get", f"keys?last4={second.last4}")[1]) == ["second"]
        status, answer = api("get", "keys?state=lost")
        assert (status, answer["error"]["param"]) == (400, "state")
        assert "active, expired, revoked" in answer["error"]["message"]

    def test_of_the_audit_trail_select_by_name_family_actor_subject_and_time(
        self, acme: Customer, mallory: Customer, api: Api
    ) -> None:
        for row in OutboxEvent.objects.all():
            events.keep(events.message_of(row))
        _, page = api("get", "audit")
        assert {row["tenant_id"] for row in page["data"]} == {str(acme.tenant.id)}
        assert names(api("get", "audit?name=key.*")[1]) == ["key.created", "key.created"]
        assert names(api("get", f"audit?name=key.created&subject=apikey:{acme.key.id}")[1]) == ["key.created"]
        assert names(api("get", "audit?actor=user:nobody")[1]) == []
        at = page["data"][0]["happened_at"]
        assert [row["happened_at"] for row in api("get", f"audit?since={at}")[1]["data"]] == [at]
        assert at not in [row["happened_at"] for row in api("get", f"audit?until={at}")[1]["data"]]
        for wrong in ("since=yesterday", "since=2027-01-15T12:00:00", "until=2027-13-01T00:00:00Z"):
            assert api("get", f"audit?{wrong}")[0] == 400

    def test_of_operators_select_a_tenant(self, acme: Customer, mallory: Customer, wired: Redis) -> None:
        operator = Api(user=User.objects.create_superuser("ada", password="x"))
        assert len(operator("get", "projects")[1]["data"]) == 2
        page = operator("get", f"projects?tenant={mallory.tenant.id}")[1]
        assert [row["tenant"] for row in page["data"]] == [str(mallory.tenant.id)]
        assert names(operator("get", "tenants?name=acme&state=active&plan=basic")[1]) == ["acme"]
