"""POST /v1/moderations: the caller's own rules in OpenAI's shape, behind the ordinary gate."""

from dataclasses import replace
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from contracts.tenancy import Limit, Metric, PolicyRef, Scope
from gateway.surface.openapi import document
from safety.policy import CompiledPolicy
from tests.functional.gateway.cast import CONTEXT
from tests.functional.gateway.conftest import Gateway

PATH = "/v1/moderations"
RULES: list[dict[str, Any]] = [
    {"name": "mail", "kind": "pii", "stage": ["prompt"], "action": "redact", "config": {"kinds": ["email"]}},
    {"name": "words", "kind": "ban_list", "stage": ["prompt"], "action": "block", "config": {"words": ["pumpkin"]}},
    {"name": "more", "kind": "ban_list", "stage": ["prompt"], "action": "flag", "config": {"words": ["melon"]}},
    {"name": "tried", "kind": "length", "stage": ["prompt"], "action": "block", "shadow": True,
     "config": {"chars_max": 1}},
    {"name": "out", "kind": "secrets", "stage": ["output"], "action": "block"},
]  # fmt: skip
JUDGE: dict[str, Any] = {
    "name": "judge", "kind": "guardrails_ai", "stage": ["prompt"], "action": "block",
    "config": {"validator": "valid_length"},
}  # fmt: skip


def guarded(gateway: Gateway, *rules: dict[str, Any], limits: tuple[Limit, ...] = ()) -> dict[str, str]:
    gateway.directory.policy = CompiledPolicy.compile({"id": "p", "version": 1, "rules": list(rules)})
    policy = PolicyRef(policy_id="p", version=1)
    return gateway.auth(gateway.directory.issue(replace(CONTEXT, api_key_id="guarded", policy=policy, limits=limits)))


class TestModerations:
    async def test_says_of_each_text_which_kinds_of_rules_found_something(self, gateway: Gateway) -> None:
        given = ["hello", "PUMPKIN", {"type": "text", "text": "mail a@b.example for melon"}]
        answer = await gateway.http.post(PATH, json={"input": given}, headers=guarded(gateway, *RULES))
        body = answer.json()
        results = body["results"]
        assert answer.status_code == 200
        assert [(one["flagged"], one["categories"]) for one in results] == [
            (False, {"pii": False, "ban_list": False}),
            (True, {"pii": False, "ban_list": True}),
            (True, {"pii": True, "ban_list": True}),
        ]
        assert results[1]["category_scores"] == {"pii": 0.0, "ban_list": 1.0}
        described = document()["components"]["schemas"]
        Draft202012Validator({**described["Moderation"], "components": {"schemas": described}}).validate(body)
        assert not any(rule["name"] in answer.text for rule in RULES)

    async def test_speaks_to_openai_s_client(self, gateway: Gateway) -> None:
        key = guarded(gateway, *RULES)["authorization"].removeprefix("Bearer ")
        client = gateway.sdk.with_options(api_key=key)
        answer = await client.moderations.create(model="omni-moderation-latest", input="a pumpkin")
        assert (answer.model, answer.results[0].flagged) == ("weir-guardrails", True)

    async def test_counts_as_a_request_and_is_refused_when_there_are_none_left(self, gateway: Gateway) -> None:
        two = Limit(scope=Scope.KEY, metric=Metric.REQUESTS_PER_MINUTE, cap=2)
        headers = guarded(gateway, *RULES, limits=(two,))
        answers = [await gateway.http.post(PATH, json={"input": "x"}, headers=headers) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert answers[1].headers["x-ratelimit-remaining-requests"] == "0"
        holds = [key async for key in gateway.services.redis.scan_iter("w:{t:acme}:hold:*")]
        assert {await gateway.services.redis.hget(hold, "st") for hold in holds} == {b"settled"}

    async def test_never_passes_a_rule_that_did_not_run_for_one_that_found_nothing(self, gateway: Gateway) -> None:
        closed = await gateway.http.post(PATH, json={"input": "x"}, headers=guarded(gateway, JUDGE))
        opened = await gateway.http.post(PATH, json={"input": "x"}, headers=guarded(gateway, JUDGE | {"fail": "open"}))
        nobody = await gateway.http.post(PATH, json={"input": "x"}, headers=gateway.auth())
        outputs = await gateway.http.post(PATH, json={"input": "x"}, headers=guarded(gateway, RULES[-1]))
        assert closed.status_code == 503
        assert opened.json()["results"][0]["categories"] == {"guardrails_ai": False}
        assert [(one.status_code, one.json()["error"]["code"]) for one in (nobody, outputs)] == [(400, "no_policy")] * 2

    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({}, "input"),
            ({"input": 3}, "input"),
            ({"input": []}, "input"),
            ({"input": ["x"] * 257}, "input"),
            ({"input": [3]}, "input[0]"),
            ({"input": [{"type": "image_url", "image_url": {"url": "https://a.example"}}]}, "input[0]"),
            ({"input": [{"type": "text", "text": 3}]}, "input[0].text"),
            ({"input": "x", "model": "gpt"}, "model"),
            ({"input": "x", "other": 1}, "other"),
            ({"input": "x", "": 1}, "body"),
            ({"input": [{"type": "text", "text": "x", "": 1}]}, "input[0]"),
        ],
    )
    async def test_names_the_field_that_is_wrong(self, gateway: Gateway, body: dict[str, Any], param: str) -> None:
        answer = await gateway.http.post(PATH, json=body, headers=guarded(gateway, *RULES))
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)

    async def test_tells_a_field_without_a_name_in_words(self, gateway: Gateway) -> None:
        answer = await gateway.http.post(PATH, json={"input": "x", "": 1}, headers=gateway.auth())
        error = answer.json()["error"]
        assert (error["message"], error["code"]) == ("body: has a field without a name", "unknown_parameter")

    async def test_needs_a_key(self, gateway: Gateway) -> None:
        assert (await gateway.http.post(PATH, json={"input": "x"})).status_code == 401
