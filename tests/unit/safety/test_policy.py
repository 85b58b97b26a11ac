"""Policy documents: complaints that name the field, bounds, and the cache."""

from __future__ import annotations

from typing import Any

import pytest

from safety.defaults import demo_document
from safety.policy import CompiledPolicy, PolicyError
from safety.rules.secrets import CHARS_MAX
from safety.verdicts import Stage


def document(*rules: dict[str, Any]) -> dict[str, Any]:
    return {"id": "p", "version": 1, "rules": list(rules)}


def rule(**changes: Any) -> dict[str, Any]:
    return {
        "name": "r",
        "kind": "regex",
        "stage": ["prompt"],
        "action": "block",
        "config": {"pattern": "a"},
        **changes,
    }


class TestCompile:
    @pytest.mark.parametrize(
        ("bad", "field"),
        [
            (document(rule(config={"pattern": "a*"})), "rules[0].config.pattern"),
            (document(rule(), rule(name="s", config={})), "rules[1].config.pattern"),
            (document(rule(config={"pattern": "a", "patern": "b"})), "rules[0].config.patern"),
            (document(rule(kind="magic")), "rules[0]"),
            (document(rule(stage=["answer"])), "rules[0].stage[0]"),
            (document(rule(stage=["prompt", "prompt"])), "rules[0].stage"),
            (document(rule(action="warn")), "rules[0].action"),
            (document(rule(fail="shut")), "rules[0].fail"),
            (document(rule(name="has space")), "rules[0].name"),
            (document(rule(config={"pattern": "a", "match_chars_max": 2000})), "rules[0].config.match_chars_max"),
            (document(rule(kind="secrets", config={"formats": ["aws"]})), "rules[0].config.formats"),
            (document(rule(kind="ban_list", config={"words": []})), "rules[0].config.words"),
            (document(rule(kind="guardrails_ai", config={"validator": "os"})), "rules[0].config.validator"),
            (
                document(rule(kind="guardrails_ai", config={"validator": "valid_length", "arguments": {"mx": 1}})),
                "rules[0].config",
            ),
            (
                document(rule(kind="guardrails_ai", config={"validator": "regex_match", "arguments": {"regex": "("}})),
                "rules[0].config",
            ),
            (document(*[rule(name=f"r{n}") for n in range(51)]), "rules"),
            ({"id": "p", "version": 0, "rules": []}, "version"),
            ({"version": 1, "rules": []}, "id"),
            ({"id": "p", "version": 1, "rules": "none"}, "rules"),
        ],
    )
    def test_names_the_field_that_is_wrong(self, bad: dict[str, Any], field: str) -> None:
        with pytest.raises(PolicyError) as caught:
            CompiledPolicy.compile(bad)
        assert field in [name for name, _ in caught.value.errors]

    def test_refuses_two_rules_of_one_name(self) -> None:
        with pytest.raises(PolicyError, match="two rules are named `r`"):
            CompiledPolicy.compile(document(rule(), rule()))

    def test_tells_every_pattern_that_is_wrong_at_once(self) -> None:
        bad = document(rule(config={"pattern": "("}), rule(name="s", config={"pattern": "b*"}))
        with pytest.raises(PolicyError) as caught:
            CompiledPolicy.compile(bad)
        assert len(caught.value.errors) == 2

    def test_compiles_a_version_once(self) -> None:
        assert CompiledPolicy.compile(document(rule())) is CompiledPolicy.compile(document(rule()))

    def test_does_not_confuse_drafts_that_share_an_id(self) -> None:
        other = document(rule(config={"pattern": "b"}))
        assert CompiledPolicy.compile(document(rule())) is not CompiledPolicy.compile(other)

    def test_takes_the_demo_policy(self) -> None:
        policy = CompiledPolicy.compile(demo_document(policy_id="demo", version=3))
        assert (policy.policy_id, policy.version) == ("demo", 3)
        assert [policy.rules[number].name for number in policy.pure(Stage.OUTPUT)] == [
            "project-codename",
            "banned-words",
            "secrets-in-output",
            "cards",
        ]
        assert all(rule.longest is not None and rule.longest <= max(CHARS_MAX.values()) for rule in policy.rules)
