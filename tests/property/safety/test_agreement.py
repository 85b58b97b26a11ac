"""The automata against RE2 for patterns nobody thought of, and the prompt gate against the output window."""

from __future__ import annotations

from contextlib import suppress

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from safety.guard import check_prompt
from safety.policy import CompiledPolicy
from safety.rules.port import RuleError
from safety.rules.regex import compile_regex
from safety.window import OutputWindow

atoms = st.sampled_from(
    ["a", "b", "c", ".", "[ab]", "[^a]", r"\d", r"\w", r"\s", r"\W", "1", " ", "(?i:A)", r"\x{61}", "é"]
)
quantifiers = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{1,2}", "{0,2}", "*?", "{2,}"])


def combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, quantifiers).map(lambda pair: f"({pair[0]}){pair[1]}"),
    )


cores = st.recursive(st.tuples(atoms, quantifiers).map("".join), combined, max_leaves=6)
leads = st.sampled_from(["", "", "", r"\b", "^", r"\B", r"\A"])
trails = st.sampled_from(["", "", "", r"\b", "$", r"\B", r"\z"])
patterns = st.tuples(leads, cores.filter(lambda core: re2.search(f"^(?:{core})$", "") is None), trails).map("".join)
texts = st.text(alphabet="abcA1 \né_", max_size=10)


def covered_by_re2(pattern: str, text: str) -> set[int]:
    covered: set[int] = set()
    for start in range(len(text)):
        for end in range(start + 1, len(text) + 1):
            if re2.search(rf"(?s)^.{{{start}}}(?-s:(?:{pattern})).{{{len(text) - end}}}$", text) is not None:
                covered.update(range(start, end))
    return covered


def covered_by_automata(pattern: str, text: str) -> set[int]:
    covered: set[int] = set()
    for automaton in compile_regex(pattern=pattern):
        scanner = automaton.scanner()
        spans = []
        for position, char in enumerate(text):
            spans.extend(scanner.step(position, text[position - 1] if position else "", char))
        spans.extend(scanner.finish())
        covered.update(index for span in spans for index in range(span.start, span.end))
    return covered


class TestRegexAutomaton:
    @given(pattern=patterns, text=texts)
    def test_covers_what_re2_matches(self, pattern: str, text: str) -> None:
        assert covered_by_automata(pattern, text) == covered_by_re2(pattern, text)

    @given(pattern=st.text(max_size=20))
    def test_takes_or_refuses_any_text_as_a_pattern(self, pattern: str) -> None:
        with suppress(RuleError):
            assert all(1 <= automaton.longest <= 1024 for automaton in compile_regex(pattern=pattern))

    @given(core=cores.filter(lambda core: re2.search(f"^(?:{core})$", "") is not None))
    def test_refuses_a_pattern_that_matches_nothing_at_all(self, core: str) -> None:
        with pytest.raises(RuleError, match="matches the empty text"):
            compile_regex(pattern=core)


RULES = st.lists(
    st.sampled_from(
        [
            {"kind": "regex", "config": {"pattern": "a+b", "replacement": "<1>"}},
            {"kind": "regex", "config": {"pattern": r"\b\d{2}\b", "replacement": "<2>"}},
            {"kind": "ban_list", "config": {"words": ["bad", "b 1", "d a"], "replacement": "<3>"}},
            {"kind": "ban_list", "config": {"words": ["ss"], "whole_words": False, "replacement": "<4>"}},
            {"kind": "pii", "config": {"kinds": ["email"], "replacement": "<5>"}},
        ]
    ),
    min_size=1,
    max_size=4,
)


class TestPromptGate:
    @given(
        rules=RULES,
        action=st.sampled_from(["redact", "flag", "block"]),
        text=st.text(alphabet="abd1 ß\u200b\uff11@.\u0301\n\u0430\u0501", max_size=30),
    )
    def test_decides_as_the_output_window_does(self, rules: list[dict[str, object]], action: str, text: str) -> None:
        named = [
            {**rule, "name": f"r{number}", "action": action, "stage": ["prompt", "output"]}
            for number, rule in enumerate(rules)
        ]
        policy = CompiledPolicy.compile({"id": "p", "version": 1, "rules": named})
        verdict = check_prompt(policy, [text], monotonic=lambda: 0.0)
        window = OutputWindow(policy, monotonic=lambda: 0.0)
        released = window.feed("0", text).text + window.finish("0").text
        assert verdict.blocked == window.blocked
        if not verdict.blocked:
            assert (verdict.redacted_texts or (text,)) == (released,)
            assert [counted(line) for line in verdict.verdicts] == [counted(line) for line in window.verdicts]


def counted(line: str) -> str:
    return next(part for part in line.split() if part.startswith("hits="))
