"""People in a tenant: what their role lets them do, and that a tenant keeps an owner."""

import threading

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import connection

from tenants import services
from tenants.models import Member, OutboxEvent, Role
from tests.functional.tenants.api import Api, manager, member
from tests.functional.tenants.conftest import Customer

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("wired")]


def row(who: Customer, name: str) -> Member:
    return Member.objects.get(tenant=who.tenant, user__username=name, deleted_at=None)


class TestRoles:
    def test_an_owner_adds_changes_and_removes_people(self, acme: Customer) -> None:
        owner = member(acme, "owner", "olga")
        User.objects.create_user("dan", email="dan@example.com", password="x")
        status, made = owner("post", "members", {"user": "dan", "role": "viewer"})
        assert (status, made["user"], made["email"], made["role"]) == (201, "dan", "dan@example.com", "viewer")
        assert owner.change(f"members/{made['id']}", {"role": "owner"})[1]["role"] == "owner"
        assert owner("delete", f"members/{made['id']}")[0] == 204
        assert owner("get", f"members/{made['id']}")[0] == 404
        names = OutboxEvent.objects.filter(name__startswith="member.").values_list("name", "body__actor")
        assert list(names)[-3:] == [
            ("member.added", "user:olga"),
            ("member.changed", "user:olga"),
            ("member.removed", "user:olga"),
        ]

    def test_an_admin_makes_and_unmakes_no_owner(self, acme: Customer) -> None:
        member(acme, "owner", "olga")
        admin = member(acme, "admin", "adam")
        User.objects.create_user("dan", password="x")
        assert admin("post", "members", {"user": "dan", "role": "owner"})[0] == 403
        status, made = admin("post", "members", {"user": "dan", "role": "admin"})
        assert status == 201
        assert admin.change(f"members/{made['id']}", {"role": "owner"})[0] == 403
        olga = row(acme, "olga")
        assert admin.change(f"members/{olga.id}", {"role": "viewer"})[0] == 403
        assert admin("delete", f"members/{olga.id}")[0] == 403
        assert row(acme, "olga").role == Role.OWNER

    def test_a_management_key_acts_as_an_admin(self, acme: Customer) -> None:
        User.objects.create_user("dan", password="x")
        key = manager(acme)
        assert key("post", "members", {"user": "dan", "role": "owner"})[0] == 403
        assert key("post", "members", {"user": "dan"})[1]["role"] == "developer"

    def test_anybody_leaves_alone_and_removes_nobody_else(self, acme: Customer) -> None:
        member(acme, "owner", "olga")
        viewer = member(acme, "viewer", "vera")
        assert viewer("delete", f"members/{row(acme, 'olga').id}")[0] == 403
        assert viewer("delete", f"members/{row(acme, 'vera').id}")[0] == 204
        assert viewer("get", "projects")[0] == 403

    def test_each_does_what_the_role_is_for(self, acme: Customer) -> None:
        developer, billing = member(acme, "developer"), member(acme, "billing")
        budget = {"scope": "project", "id": str(acme.project.id), "period": "month", "amount": "12.50"}
        assert developer("post", "budgets", budget)[0] == 403
        assert billing("post", "budgets", budget)[0] == 200
        key = {"project": str(acme.project.id), "name": "ci"}
        assert billing("post", "keys", key)[0] == 403
        assert developer("post", "keys", key)[0] == 201
        assert developer("get", "audit")[0] == 403
        assert member(acme, "viewer")("get", "keys")[0] == 200

    def test_refuses_strangers_twins_and_unknown_roles(self, acme: Customer) -> None:
        owner = member(acme, "owner", "olga")
        User.objects.create_user("gone", password="x", is_active=False)
        for body, refused, param in (
            ({"user": "nobody"}, 400, "user"),
            ({"user": "gone"}, 400, "user"),
            ({"user": "olga"}, 409, "user"),
            ({"user": "olga", "role": "king"}, 400, "role"),
        ):
            status, answer = owner("post", "members", body)
            assert (status, answer["error"]["param"]) == (refused, param), body


class TestLastOwner:
    def test_neither_leaves_nor_steps_down(self, acme: Customer) -> None:
        owner = member(acme, "owner", "olga")
        olga = row(acme, "olga")
        for status, answer in (
            owner("delete", f"members/{olga.id}"),
            owner.change(f"members/{olga.id}", {"role": "admin"}),
        ):
            assert (status, answer["error"]["param"], answer["error"]["code"]) == (409, None, "conflict")
            assert "last owner" in answer["error"]["message"]
        member(acme, "owner", "oscar")
        assert owner("delete", f"members/{olga.id}")[0] == 204

    def test_stays_also_for_an_operator(self, acme: Customer) -> None:
        member(acme, "owner", "olga")
        with pytest.raises(ValidationError, match="last owner"):
            services.remove_member(member=row(acme, "olga"))

    @pytest.mark.django_db(transaction=True)
    def test_is_left_where_two_owners_go_at_once(self, acme: Customer) -> None:
        for name in ("olga", "oscar"):
            member(acme, "owner", name)
        refused = []

        def leave(owner: Member) -> None:
            try:
                services.remove_member(member=owner, leaves=True)
            except ValidationError as error:
                refused.append(error)
            finally:
                connection.close()

        threads = [threading.Thread(target=leave, args=(row(acme, name),)) for name in ("olga", "oscar")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
        assert len(refused) == 1
        assert Member.objects.filter(tenant=acme.tenant, role=Role.OWNER, deleted_at=None).count() == 1


class TestSeveralTenants:
    def test_are_told_apart_by_the_header(self, acme: Customer, mallory: Customer) -> None:
        user = User.objects.create_user("both", password="x")
        for who in (acme, mallory):
            services.add_member(tenant=who.tenant, user=user, role=Role.VIEWER)
        status, answer = Api(user=user)("get", "projects")
        assert (status, answer["error"]["param"]) == (400, "Weir-Tenant")
        for who in (acme, mallory):
            _, page = Api(user=user, tenant=who.tenant.id)("get", "projects")
            assert [each["id"] for each in page["data"]] == [str(who.project.id)]

    def test_of_which_one_is_foreign_or_no_id(self, acme: Customer, mallory: Customer) -> None:
        user = User.objects.create_user("one", password="x")
        services.add_member(tenant=acme.tenant, user=user)
        assert Api(user=user, tenant=mallory.tenant.id)("get", "projects")[0] == 404
        assert Api(user=user, tenant="x")("get", "projects")[0] == 400
        assert Api(user=User.objects.create_user("none", password="x"))("get", "projects")[0] == 403

    def test_suspended_or_closed_ones_let_nobody_in(self, acme: Customer) -> None:
        owner = member(acme, "owner")
        services.suspend_tenant(tenant=acme.tenant)
        assert owner("get", "projects")[0] == 403
        services.close_tenant(tenant=acme.tenant)
        assert owner("get", "projects")[0] == 403
