"""/api/v1/policies: who reads a policy, and what it makes of a text that nobody keeps."""

import logging
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection

from safety import services as safety_services
from safety import trying
from safety.models import Policy
from tenants import services
from tenants.models import IdempotentWrite
from tests.functional.tenants.api import Api, manager, member
from tests.functional.tenants.conftest import Customer

pytestmark = pytest.mark.django_db


def rule(name: str, kind: str, action: str, config: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "kind": kind, "stage": ["prompt", "output"], "action": action, "config": config, **more}


CARDS = rule("cards", "pii", "redact", {"kinds": ["card"], "replacement": "[card]"})
BOMBS = rule("bombs", "ban_list", "block", {"words": ["pipe bomb"]})
CODE = rule("code", "regex", "block", {"pattern": "bluebird"}, shadow=True)
CARD = "4111 1111 1111 1111"


@pytest.fixture
def policy(acme: Customer) -> Policy:
    """Acme's: `bombs` in force, the draft has two rules more."""
    made = safety_services.create_policy(name="acme's", rules=[BOMBS])
    safety_services.publish_policy(policy_id=str(made.pk), published_by="ada")
    made.refresh_from_db()
    made.draft_rules = [CARDS, BOMBS, CODE]
    made.save()
    services.change_tenant(tenant=acme.tenant, changes={"policy": made})
    return made


def try_it(api: Api, policy: Policy, body: dict[str, Any], **headers: str) -> tuple[int, Any]:
    return api("post", f"policies/{policy.pk}/try", body, **headers)


class TestRead:
    def test_shows_a_tenant_its_own(self, acme: Customer, policy: Policy) -> None:
        safety_services.create_policy(name="somebody's", rules=[])
        api = manager(acme)
        status, page = api("get", "policies")
        assert (status, [row["name"] for row in page["data"]], page["has_more"]) == (200, ["acme's"], False)
        status, one = api("get", f"policies/{policy.pk}")
        assert (status, one["published_version"], one["draft_rules"]) == (200, 1, [CARDS, BOMBS, CODE])
        assert api("get", f"policies/{policy.pk}", if_none_match=api.last["ETag"])[0] == 304

    def test_shows_an_operator_all_by_pages(self, acme: Customer, policy: Policy) -> None:
        newer = safety_services.create_policy(name="somebody's", rules=[])
        api = Api(user=User.objects.create_superuser("ada", password="x"))
        _, page = api("get", "policies?limit=1")
        assert ([row["id"] for row in page["data"]], page["has_more"]) == ([str(newer.pk)], True)
        _, page = api("get", f"policies?limit=1&after={page['last_id']}")
        assert ([row["id"] for row in page["data"]], page["has_more"]) == ([str(policy.pk)], False)
        assert [row["name"] for row in api("get", "policies?published=false")[1]["data"]] == ["somebody's"]

    def test_knows_none_where_the_tenant_has_none(self, acme: Customer, mallory: Customer, policy: Policy) -> None:
        assert manager(mallory)("get", "policies")[1]["data"] == []
        assert manager(mallory)("get", f"policies/{policy.pk}")[0] == 404


class TestTryPrompt:
    def test_says_what_each_rule_of_the_draft_does(self, acme: Customer, policy: Policy) -> None:
        status, found = try_it(manager(acme), policy, {"stage": "prompt", "text": f"Bill {CARD} for bluebird.\n"})
        assert status == 200
        assert (found["origin"], found["version"], found["stage"]) == ("draft", None, "prompt")
        assert (found["action"], found["blocked_by"]) == ("redact", None)
        assert found["text"] == "Bill [card] for bluebird.\n"
        assert [(one["rule"], one["kind"], one["state"], one["hits"], one["acted"]) for one in found["rules"]] == [
            ("cards", "pii", "ran", 1, True),
            ("bombs", "ban_list", "ran", 0, False),
            ("code", "regex", "ran", 1, False),
        ]
        assert found["rules"][2]["shadow"] == "block"
        assert all(one["latency_ms"] >= 0 for one in found["rules"])
        assert (found["chunks"], found["at_end"], found["cut"]) == ([], "", None)

    def test_refuses_as_the_gateway_would(self, acme: Customer, policy: Policy) -> None:
        _, found = try_it(manager(acme), policy, {"stage": "prompt", "text": "build a PIPE  BOMB"})
        assert (found["action"], found["blocked_by"], found["text"]) == ("block", "bombs", None)

    def test_runs_what_is_published_where_the_draft_is_empty(self, acme: Customer, policy: Policy) -> None:
        Policy.objects.filter(pk=policy.pk).update(draft_rules=[])
        _, found = try_it(manager(acme), policy, {"stage": "prompt", "text": CARD})
        assert (found["origin"], found["version"]) == ("published", 1)
        assert [one["rule"] for one in found["rules"]] == ["bombs"]

    def test_runs_the_document_that_is_sent(self, acme: Customer, policy: Policy) -> None:
        length = rule("short", "length", "flag", {"chars_max": 3})
        body = {"stage": "prompt", "text": "abcd\x00", "document": {"rules": [length]}}
        _, found = try_it(manager(acme), policy, body)
        assert (found["origin"], found["action"], found["text"]) == ("document", "flag", "abcd\x00")
        policy.refresh_from_db()
        assert policy.draft_rules == [CARDS, BOMBS, CODE]


class TestTryOutput:
    def test_says_what_each_chunk_released_and_what_is_held(self, acme: Customer, policy: Policy) -> None:
        text = f"No: {CARD}. A pipe organ."
        body = {"stage": "output", "text": text, "chunks": [4, len(CARD), 1, 9]}
        _, found = try_it(manager(acme), policy, body)
        assert found["text"] == "No: [card]. A pipe organ."
        assert [(one["length"], one["released"], one["held"]) for one in found["chunks"]] == [
            (4, "No: ", 0),
            (19, "", 19),
            (1, "[card].", 0),
            (9, " A pipe o", 0),
            (5, "rgan.", 0),
        ]
        assert sum(one["length"] for one in found["chunks"]) == len(text)
        assert "".join(one["released"] for one in found["chunks"]) + found["at_end"] == found["text"]
        assert (found["action"], found["cut"]) == ("redact", None)

    def test_says_where_a_block_cut(self, acme: Customer, policy: Policy) -> None:
        body = {"stage": "output", "text": "Take a pipe bomb and run", "chunks": 6}
        _, found = try_it(manager(acme), policy, body)
        assert (found["action"], found["blocked_by"], found["text"]) == ("block", "bombs", "Take a ")
        assert [one["released"] for one in found["chunks"]] == ["Take a", " ", ""]
        assert found["cut"] == {"chunk": 2, "released": 7}
        assert [one["state"] for one in found["rules"]] == ["stopped", "ran", "stopped"]
        assert all(one["latency_ms"] >= 0 for one in found["rules"])

    def test_does_not_depend_on_the_chunks(self, acme: Customer, policy: Policy) -> None:
        text = f"pipe bom {CARD} x" * 20
        api = manager(acme)
        texts = {
            try_it(api, policy, {"stage": "output", "text": text, **how})[1]["text"] for how in ({}, {"chunks": 1})
        }
        assert texts == {"pipe bom [card] x" * 20}

    @pytest.mark.slow
    def test_waits_for_the_end_where_the_whole_is_judged(self, acme: Customer, policy: Policy) -> None:
        schema = {"name": "json", "kind": "json_schema", "stage": ["output"], "action": "block"}
        document = {"rules": [{**schema, "config": {"schema": {"type": "object"}, "deadline_ms": 10_000}}]}
        api = manager(acme)
        body = {"stage": "output", "text": '{"a": 1}', "chunks": 5, "document": document}
        _, found = try_it(api, policy, body)
        assert [(one["released"], one["held"]) for one in found["chunks"]] == [("", 5), ("", 8)]
        assert (found["at_end"], found["action"]) == ('{"a": 1}', "pass")
        [told] = found["rules"]
        assert (told["state"], told["hits"]) == ("ran", 0)
        _, found = try_it(api, policy, {**body, "text": "no json"})
        assert (found["action"], found["blocked_by"], found["cut"]) == ("block", "json", {"chunk": None, "released": 0})


class TestRefuses:
    @pytest.mark.parametrize(
        ("changes", "param"),
        [
            ({"text": None}, "text"),
            ({"text": 5}, "text"),
            ({"text": "é" * 32_769}, "text"),
            ({"stage": "both"}, "stage"),
            ({"stage": "prompt", "chunks": 3}, "chunks"),
            ({"chunks": 0}, "chunks"),
            ({"chunks": True}, "chunks"),
            ({"chunks": [2, "x"]}, "chunks"),
            ({"chunks": [3, 3]}, "chunks"),
            ({"chunks": [1] * 4_097, "text": "a" * 5_000}, "chunks"),
            ({"chunks": 1, "text": "a" * 5_000}, "chunks"),
            ({"unheard": 1}, "unheard"),
            ({"document": {"rules": [], "unheard": 1}}, "document.unheard"),
            ({"document": {"rules": [CARDS, {**CODE, "config": {"pattern": "("}}]}}, "document.rules.1.config.pattern"),
            ({"document": {"rules": [{"name": "x", "kind": "nothing"}]}}, "document.rules.0"),
        ],
    )
    def test_names_the_field(self, acme: Customer, policy: Policy, changes: dict[str, Any], param: str) -> None:
        body = {"stage": "output", "text": "hello", **changes}
        status, refusal = try_it(manager(acme), policy, body)
        assert (status, refusal["error"]["param"]) == (400, param)

    def test_another_tenant_and_who_does_not_lead(self, acme: Customer, mallory: Customer, policy: Policy) -> None:
        body = {"stage": "prompt", "text": "x"}
        assert try_it(manager(mallory), policy, body)[0] == 404
        assert try_it(member(acme, "developer"), policy, body)[0] == 403
        assert try_it(member(acme, "admin"), policy, body)[0] == 200
        assert try_it(Api(), policy, body)[0] == 401
        assert try_it(manager(acme), policy, body, if_match='"another"')[0] == 412

    def test_a_draft_that_this_release_does_not_know(self, acme: Customer, policy: Policy) -> None:
        Policy.objects.filter(pk=policy.pk).update(draft_rules=[{**CODE, "kind": "gone"}])
        status, refusal = try_it(manager(acme), policy, {"stage": "prompt", "text": "x"})
        assert (status, refusal["error"]["code"]) == (409, "conflict")

    def test_more_trials_than_may_run(self, acme: Customer, policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(trying, "_places", trying.BoundedSemaphore(1))
        with trying._places:
            api = manager(acme)
            assert try_it(api, policy, {"stage": "prompt", "text": "x"})[0] == 429
        assert api.last["Retry-After"] == "1"

    def test_a_trial_that_does_not_end(self, acme: Customer, policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(trying, "TRIAL_SECONDS_MAX", 0.001)
        assert try_it(manager(acme), policy, {"stage": "prompt", "text": "x"})[0] == 503


class TestKeepsNothing:
    CANARY = "canary-7f3a bluebird"

    def test_a_text_is_in_no_table_and_no_log(
        self, acme: Customer, policy: Policy, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        api = manager(acme)
        for stage in ("prompt", "output"):
            status, _ = try_it(api, policy, {"stage": stage, "text": self.CANARY}, idempotency_key="once")
            assert status == 200
            assert "Idempotent-Replayed" not in api.last
        assert "canary-7f3a" not in caplog.text
        assert IdempotentWrite.objects.count() == 0
        with connection.cursor() as cursor:
            for table in connection.introspection.table_names(cursor):
                cursor.execute(f'SELECT count(*) FROM "{table}" AS row WHERE row::text LIKE %s', ["%canary-7f3a%"])
                assert cursor.fetchone() == (0,), table
