"""Writes that may be repeated, and changes made to what was seen."""

import threading
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone
from pytest_django import Settings
from redis import Redis

from tenants import services
from tenants.auth.keys import looks_valid
from tenants.models import ApiKey, IdempotentWrite, LimitSetting, OutboxEvent, Project
from tenants.services import repeats
from tests.functional.tenants.api import Api, manager
from tests.functional.tenants.conftest import Customer

pytestmark = pytest.mark.django_db


@pytest.fixture
def api(acme: Customer, wired: Redis) -> Api:
    return manager(acme)


def at_once(api: Api, path: str, bodies: list[Any], **headers: str) -> list[tuple[int, Any]]:
    """The answers of POSTs that come together, in no order."""
    answers: list[tuple[int, Any]] = []

    def post(body: Any) -> None:
        try:
            mine = Api()
            mine._headers = api._headers
            answers.append(mine("post", path, body, **headers))
        finally:
            connection.close()

    threads = [threading.Thread(target=post, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    return answers


class TestIdempotencyKey:
    def test_gives_a_repeat_the_first_answer_and_makes_one_row(self, acme: Customer, api: Api) -> None:
        status, first = api("post", "projects", {"name": "x"}, idempotency_key="k1")
        etag = api.last["ETag"]
        again, second = api("post", "projects", {"name": "x"}, idempotency_key="k1")
        assert (status, again, second) == (201, 201, first)
        assert (api.last["Idempotent-Replayed"], api.last["ETag"]) == ("true", etag)
        assert Project.objects.filter(name="x").count() == 1
        assert OutboxEvent.objects.filter(name="project.created", body__after__name="x").count() == 1

    def test_shows_a_lost_new_key_again_and_keeps_it_readable_to_nobody_else(self, acme: Customer, api: Api) -> None:
        body = {"project": str(acme.project.id), "name": "ci"}
        _, first = api("post", "keys", body, idempotency_key="secret-of-the-client")
        assert looks_valid(first["key"])
        _, second = api("post", "keys", body, idempotency_key="secret-of-the-client")
        assert second == first
        assert ApiKey.objects.filter(name="ci").count() == 1
        [row] = IdempotentWrite.objects.values()
        kept = bytes(row.pop("answer"))
        assert first["key"].encode() not in kept
        assert "secret-of-the-client" not in str(row)

    def test_refuses_another_request_under_the_same_key(self, acme: Customer, api: Api) -> None:
        api("post", "projects", {"name": "x"}, idempotency_key="k1")
        for path, body in (("projects", {"name": "y"}), ("members", {"user": "ada"})):
            status, answer = api("post", path, body, idempotency_key="k1")
            assert (status, answer["error"]["code"]) == (422, "idempotency_mismatch")
            assert answer["error"]["param"] == "Idempotency-Key"
        assert not Project.objects.filter(name="y").exists()

    def test_is_apart_for_each_caller(self, acme: Customer, mallory: Customer, api: Api) -> None:
        _, mine = api("post", "projects", {"name": "x"}, idempotency_key="k1")
        status, theirs = manager(mallory)("post", "projects", {"name": "x"}, idempotency_key="k1")
        assert status == 201
        assert theirs["id"] != mine["id"]
        assert theirs["tenant"] == str(mallory.tenant.id)

    def test_is_free_again_after_a_refusal(self, acme: Customer, api: Api) -> None:
        assert api("post", "projects", {"name": ""}, idempotency_key="k1")[0] == 400
        assert api("post", "projects", {"name": "x"}, idempotency_key="k1")[0] == 201

    def test_of_another_form_is_refused(self, api: Api) -> None:
        for key in ("", "x" * 256, "ü", "a b"):
            status, answer = api("post", "projects", {"name": "x"}, idempotency_key=key)
            assert (status, answer["error"]["param"]) == (400, "Idempotency-Key"), key
        assert api("post", "projects", {"name": "x"}, idempotency_key="x" * 255)[0] == 201

    def test_is_forgotten_after_a_day(self, acme: Customer, api: Api) -> None:
        api("post", "projects", {"name": "x"}, idempotency_key="k1")
        old = timezone.now() - repeats.KEEP
        IdempotentWrite.objects.update(created_at=old)
        assert api("post", "projects", {"name": "y"}, idempotency_key="k1")[0] == 201
        IdempotentWrite.objects.update(created_at=old)
        assert repeats.forget_old() == 1

    def test_opens_its_answer_after_the_root_secret_changed(self, acme: Customer, api: Api, settings: Settings) -> None:
        _, first = api("post", "projects", {"name": "x"}, idempotency_key="k1")
        env = settings.ENV
        secret = type(env.secret)
        settings.ENV = env.model_copy(update={"secret": secret("n" * 40), "secret_old": env.secret})
        assert api("post", "projects", {"name": "x"}, idempotency_key="k1")[1] == first

    @pytest.mark.django_db(transaction=True)
    def test_of_two_at_once_makes_one_row(self, acme: Customer, api: Api) -> None:
        answers = at_once(api, "projects", [{"name": "x"}] * 4, idempotency_key="k1")
        assert [status for status, _ in answers] == [201] * 4
        assert len({body["id"] for _, body in answers}) == 1
        assert Project.objects.filter(name="x").count() == 1


class TestAtOnce:
    @pytest.mark.django_db(transaction=True)
    def test_one_of_a_name_is_made_and_of_new_limits_the_last_stands(self, acme: Customer, api: Api) -> None:
        made = at_once(api, "projects", [{"name": "x"}] * 4)
        assert sorted(status for status, _ in made) == [201, 409, 409, 409]
        refusals = {answer["error"]["message"] for status, answer in made if status == 409}
        assert refusals == {"A project named `x` exists already."}
        project = {"scope": "project", "id": str(acme.project.id)}
        limits = [{**project, "limits": [{"metric": "tokens_per_day", "cap": cap}]} for cap in (10, 20, 30, 40)]
        assert [status for status, _ in at_once(api, "limits", limits)] == [200] * 4
        assert LimitSetting.objects.get(project=acme.project).cap in (10, 20, 30, 40)


class TestVersions:
    def test_a_change_must_say_what_it_saw(self, acme: Customer, api: Api) -> None:
        path = f"projects/{acme.project.id}"
        status, answer = api("patch", path, {"name": "x"})
        assert (status, answer["error"]["code"], answer["error"]["param"]) == (428, "precondition_required", "If-Match")
        _, _ = api("get", path)
        seen = api.last["ETag"]
        assert api("patch", path, {"name": "x"}, if_match=seen)[0] == 200
        newer = api.last["ETag"]
        assert newer != seen
        status, answer = api("patch", path, {"name": "y"}, if_match=seen)
        assert (status, answer["error"]["code"]) == (412, "precondition_failed")
        acme.project.refresh_from_db()
        assert acme.project.name == "x"
        assert api("patch", path, {"name": "y"}, if_match=f'"nonsense", {newer}')[0] == 200
        assert api("patch", path, {"name": "z"}, if_match="*")[0] == 200

    def test_a_deed_may_say_what_it_saw(self, acme: Customer, api: Api) -> None:
        path = f"keys/{acme.key.id}"
        _, _ = api("get", path)
        seen = api.last["ETag"]
        services.change_key(key=acme.key, changes={"name": "renamed"})
        assert api("post", f"{path}/revoke", {}, if_match=seen)[0] == 412
        assert api("delete", path, if_match=seen)[0] == 412
        assert api("delete", path)[0] == 204

    @pytest.mark.parametrize("header", ["abc", '"a', "W/", '""', "'a'"])
    def test_what_is_no_tag_is_refused(self, acme: Customer, api: Api, header: str) -> None:
        status, answer = api("patch", f"projects/{acme.project.id}", {"name": "x"}, if_match=header)
        assert (status, answer["error"]["param"]) == (400, "If-Match")

    def test_a_weak_tag_matches_no_change(self, acme: Customer, api: Api) -> None:
        _, _ = api("get", f"projects/{acme.project.id}")
        weak = f"W/{api.last['ETag']}"
        assert api("patch", f"projects/{acme.project.id}", {"name": "x"}, if_match=weak)[0] == 412
        assert api("get", f"projects/{acme.project.id}", if_none_match=weak)[0] == 304

    def test_what_is_unchanged_is_not_sent_again(self, acme: Customer, api: Api) -> None:
        path = f"keys/{acme.key.id}"
        _, _ = api("get", path)
        seen = api.last["ETag"]
        services.record_last_used({acme.key.id: timezone.now()})  # moves by itself, so it is no new version
        assert api("get", path, if_none_match=seen) == (304, None)
        services.change_key(key=acme.key, changes={"name": "renamed"})
        assert api("get", path, if_none_match=seen)[0] == 200


class TestRefusals:
    def test_leave_nothing_behind(self, acme: Customer, api: Api) -> None:
        before = OutboxEvent.objects.count()
        limits = [{"metric": "tokens_per_day", "cap": 1}, {"metric": "requests_per_minute", "cap": 10**14}]
        assert api("post", "limits", {"scope": "key", "id": str(acme.key.id), "limits": limits})[0] == 400
        assert acme.key.limits.count() == 0
        assert OutboxEvent.objects.count() == before

    def test_hold_problem_details_beside_openais_error(self, api: Api) -> None:
        _, answer = api("post", "projects", {"name": ""})
        error = answer.pop("error")
        assert answer == {
            "type": "urn:weir:error:invalid_value",
            "title": "Bad Request",
            "status": 400,
            "detail": error["message"],
        }
        assert api.last["X-Request-ID"]
        assert api.last["Cache-Control"] == "no-store"

    def test_take_no_word_for_a_number_and_no_number_for_a_word(self, acme: Customer, api: Api) -> None:
        key = str(acme.key.id)
        for cap in ("5", 5.0, True, [], {}):
            limits = [{"metric": "tokens_per_day", "cap": cap}]
            status, answer = api("post", "limits", {"scope": "key", "id": key, "limits": limits})
            assert (status, answer["error"]["param"]) == (400, "limits.0.cap"), cap
        for body in ({"name": 5}, {"name": True}, {"name": ["x"]}):
            assert api("post", "projects", body)[1]["error"]["param"] == "name"
        for flag in ("true", 1, "yes", None):
            status, answer = api.change(f"tenants/{acme.tenant.id}", {"evaluation_log": flag})
            assert (status, answer["error"]["param"]) == (400, "evaluation_log"), flag

    def test_of_a_database_that_is_away_are_a_503(self, api: Api, settings: Settings, monkeypatch: Any) -> None:
        from django.db import OperationalError

        from tenants.api import routes

        def refuse(*args: Any) -> Any:
            raise OperationalError("gone")

        monkeypatch.setattr(routes.transaction, "atomic", refuse)
        status, answer = api("get", "projects")
        assert (status, answer["error"]["code"], api.last["Retry-After"]) == (503, "service_unavailable", "5")

    def test_of_staff_that_may_only_look_change_nothing(self, acme: Customer, wired: Redis) -> None:
        user = User.objects.create_user("bob", password="x", is_staff=True)
        api = Api(user=user)
        assert api("post", "projects", {"tenant": str(acme.tenant.id), "name": "x"})[0] == 403
        assert not Project.objects.filter(name="x").exists()
