"""A trial: the engine that serves, told piece by piece."""

from __future__ import annotations

from typing import Any

import pytest

from safety.trial import Cut, Piece, cut_text, run_trial, try_output, try_prompt
from safety.trying import CHUNKS_MAX, even_chunks
from tests.unit.safety.test_guard import DEMO, Ticks, guardrails, policy, regex


class TestTryPrompt:
    async def test_tells_the_engine_s_verdict(self) -> None:
        outcome = await try_prompt(DEMO, "pay 4111 1111 1111 1111", pool=None, monotonic=Ticks())
        assert (outcome.action, outcome.text, outcome.blocked_by) == ("redact", "pay [number]", None)
        assert [(told.rule, told.hits, told.latency_ms) for told in outcome.rules] == [
            ("project-codename", 0, 1.0),
            ("banned-words", 0, 1.0),
            ("secrets-in-prompt", 0, 1.0),
            ("cards", 1, 1.0),
        ]

    async def test_tells_of_a_rule_that_could_not_run(self) -> None:
        outcome = await try_prompt(policy(guardrails(fail="closed")), "x", pool=None, monotonic=Ticks())
        assert (outcome.action, outcome.blocked_by, outcome.text) == ("block", "r0", None)
        assert outcome.rules[0].state == "refused"


class TestTryOutput:
    async def test_tells_what_is_held_after_each_chunk(self) -> None:
        rules = policy(regex("abc", "redact", replacement="[x]"))
        outcome = await try_output(rules, "1ab2abc3ab", [3, 3], pool=None, monotonic=Ticks())
        assert outcome.chunks == (
            Piece(length=3, released="1", held=2),
            Piece(length=3, released="ab2", held=2),
            Piece(length=4, released="[x]3", held=2),
        )
        assert (outcome.at_end, outcome.text, outcome.action) == ("ab", "1ab2[x]3ab", "redact")
        assert [told.latency_ms for told in outcome.rules] == [4.0]  # three chunks and the end, alone

    async def test_tells_where_a_block_cut(self) -> None:
        rules = policy(regex("one", "flag"), regex("stop", "block"))
        outcome = await try_output(rules, "one two stop three", [8, 3, 3], pool=None, monotonic=Ticks())
        assert (outcome.text, outcome.blocked_by, outcome.cut) == ("one two ", "r1", Cut(chunk=2, released=8))
        assert [(told.state, told.hits) for told in outcome.rules] == [("stopped", 1), ("ran", 1)]
        assert outcome.chunks[-1] == Piece(length=3, released="", held=6)

    async def test_waits_where_a_validator_judges_the_whole(self) -> None:
        outcome = await try_output(policy(guardrails(fail="open")), "abcd", [3], pool=None, monotonic=Ticks())
        assert [piece.held for piece in outcome.chunks] == [3, 4]
        assert (outcome.at_end, outcome.rules[0].state) == ("abcd", "refused")
        outcome = await try_output(policy(guardrails(fail="closed")), "abcd", [4], pool=None, monotonic=Ticks())
        assert (outcome.text, outcome.blocked_by, outcome.cut) == ("", "r0", Cut(chunk=None, released=0))


class TestRunTrial:
    async def test_answers_with_plain_values_or_with_what_is_wrong(self) -> None:
        document: dict[str, Any] = {"id": "t", "version": 1, "rules": []}
        asked = {"document": document, "stage": "output", "text": "x", "chunks": []}
        answer = await run_trial(asked, monotonic=Ticks())
        assert answer["outcome"]["chunks"] == ({"length": 1, "released": "x", "held": 0},)
        answer = await run_trial({**asked, "document": {**document, "rules": [{}]}}, monotonic=Ticks())
        assert answer["errors"][0][0] == "rules[0]"


class TestChunks:
    @pytest.mark.parametrize(("size", "lengths"), [(None, [4, 4, 1]), (5, [5, 4]), (100, [9])])
    def test_cover_the_text(self, size: int | None, lengths: list[int]) -> None:
        assert even_chunks("a" * 9, size) == lengths
        assert [len(part) for part in cut_text("a" * 9, lengths)] == lengths

    def test_are_bounded_unless_a_size_is_named(self) -> None:
        assert len(even_chunks("a" * 65_536)) == CHUNKS_MAX
        assert list(cut_text("", [])) == []
