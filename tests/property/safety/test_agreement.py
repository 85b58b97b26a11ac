"""The automata against RE2 for patterns nobody thought of, the prompt gate against the output window, and its search,
which leaves to native code what no match is in, against reading every character.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import pytest
import re2
from hypothesis import example, given
from hypothesis import strategies as st

from safety.guard import check_prompt
from safety.policy import CompiledPolicy, CompiledRule
from safety.rules.cover import Tally
from safety.rules.normalise import SPACED, Reading, is_repeated_space, shape
from safety.rules.port import Automaton, Form, RuleError, Span
from safety.rules.regex import compile_regex
from safety.rules.tracker import Plan, Reader, Tracker
from safety.rules.words import NEIGHBOURS, neighbour
from safety.search import Prompt, find_matches
from safety.verdicts import Action
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


# What a rule finds, what nearly is one, what overlaps; and what takes the search to its longer pieces.
PIECES = [
    "a", "b", "ab", "aab", "aba", "c", "x", "1", "12", "a b", "b 1", "bad", "abad", "bad bad", "d a", "the bad one",
    "thebad", "ss", "ß", "sss", "a@b.cd", "a@b", "@", ".cd", "4111 1111 1111 1111", "4111 1111 1111 1112", "1111 ", " ",
    "  ", "\n", "\t ", "\u200b", "\u0301", "\u00ad", "\uff41", "\uff11", "\u0430", "ﬁ", "я", "\ud800", "https://a.bc",
    "//x.y", "/", "ignore all rules", "x" * 70, "y " * 90, "no " * 180, "\u200b" * 60, "é" * 140, "1" * 40,
]  # fmt: skip
KINDS: list[tuple[str, dict[str, object]]] = [
    ("regex", {"pattern": "a+b", "match_chars_max": 4}),
    ("regex", {"pattern": r"\ba|b\b|^x|1$"}),
    ("regex", {"pattern": "a[^b]*c", "match_chars_max": 9}),
    ("regex", {"pattern": "(?:ab){2}", "normalise": False}),
    ("ban_list", {"words": ["bad", "b 1", "d a", "the bad one", "abad bad"]}),
    ("ban_list", {"words": ["ss", "a", "ab", "aba", "x" * 100], "whole_words": False, "look_alikes": False}),
    ("pii", {"kinds": ["email", "card", "gb_nhs"]}),
    ("secrets", {"formats": ["assigned_secret", "mailgun_key"]}),
    ("urls", {"allow_domains": ["b.cd"]}),
    ("charset", {"scripts": ["Latin"], "deny": ["invisible"]}),
    ("length", {"chars_max": 20}),
    ("prompt_injection", {}),
]
kinds = st.one_of(
    st.sampled_from(KINDS),
    patterns.map(lambda pattern: ("regex", {"pattern": pattern, "match_chars_max": 3})),
    st.lists(st.text(alphabet="ab1 ", min_size=1, max_size=4).filter(str.strip), min_size=1, max_size=4).map(
        lambda words: ("ban_list", {"words": words})
    ),
)
prompts = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=10).map("".join),
    st.text(alphabet="abcx1 \né_ß\u200b\uff41", max_size=20),
)


def compiled(kind: tuple[str, dict[str, object]], action: str) -> CompiledRule:
    rule = {"name": "r", "kind": kind[0], "stage": ["prompt"], "action": action, "config": kind[1]}
    return CompiledPolicy.compile({"id": "p", "version": 1, "rules": [rule]}).rules[0]


def read_through(rule: CompiledRule, text: str) -> tuple[list[Span], int]:
    """The reference: every character, from the first to the last."""
    tracker = Tracker(Plan(Reader(rule=0, holds=True, automaton=automaton) for automaton in rule.automata))
    spans: list[Span] = []
    tally = Tally()
    steps = [*text, None]
    for char in steps:
        for hit in tracker.finish() if char is None else tracker.step(char):
            spans.append(hit.span)
            tally.add(hit.span, settled=tracker.floor)
        if spans and rule.action is Action.BLOCK:
            return spans, 1
    return spans, tally.count


def found_from(automaton: Automaton, formed: str, start: int) -> list[Span]:
    """What a scanner finds that reads from `start` on."""
    scanner = automaton.scanner()
    found: list[Span] = []
    for place, (previous, char) in enumerate(pairwise(["", *formed])):
        if place >= start:
            found.extend(scanner.step(place, previous, char))
    return [*found, *scanner.finish()]


class TestReading:
    @given(form=st.sampled_from(Form), text=prompts)
    def test_is_the_shape_of_each_character_with_its_place(self, form: Form, text: str) -> None:
        shaped = [(part, place) for place, char in enumerate(text) for part in shape(char, form)]
        if form in SPACED:
            pairs = pairwise([("", 0), *shaped])
            shaped = [one for before, one in pairs if not is_repeated_space(before[0], one[0])]
        reading = Reading(text, form)
        assert list(zip(reading.formed, reading.offsets, strict=True)) == shaped


class TestSearch:
    @given(kind=kinds, action=st.sampled_from(["redact", "flag", "block"]), text=prompts)
    @example(kind=("regex", {"pattern": "ab"}), action="redact", text="ab" + "x" * 125 + "ab" + "x" * 1023 + "ab")
    @example(
        kind=("ban_list", {"words": ["ab", "x ab x"]}), action="redact", text="x ab" + " x ab x" * 2 + "y" * 300 + "ab"
    )
    @example(kind=("charset", {"scripts": ["Latin"]}), action="redact", text="яяaяя" + "a" * 200 + "я\ud800я")
    def test_finds_what_reading_every_character_finds(
        self, kind: tuple[str, dict[str, object]], action: str, text: str
    ) -> None:
        rule = compiled(kind, action)
        spans, count = find_matches(rule, Prompt(text))
        all_spans, all_count = read_through(rule, text)
        assert (sorted(spans), count) == (sorted(all_spans), all_count)

    @given(kind=kinds, text=prompts, share=st.floats(0, 1))
    def test_goes_on_before_the_next_match(self, kind: tuple[str, dict[str, object]], text: str, share: float) -> None:
        for automaton in compiled(kind, "redact").automata:
            formed = Reading(text, automaton.form).formed
            start = int(share * len(formed))
            first = automaton.first(formed, start)
            assert first is None or start <= first < len(formed)
            assert found_from(automaton, formed, len(formed) if first is None else first) == found_from(
                automaton, formed, start
            )


class TestTracker:
    @given(kind=kinds, text=prompts)
    def test_wakes_every_scanner_that_would_find_something(
        self, kind: tuple[str, dict[str, object]], text: str
    ) -> None:
        rule = compiled(kind, "redact")
        found: list[Span] = []
        for automaton in rule.automata:
            scanner, previous = automaton.scanner(), ""
            for position, char in enumerate(text):
                for part in shape(char, automaton.form):
                    if not (automaton.form in SPACED and is_repeated_space(previous, part)):
                        found.extend(scanner.step(position, previous, part))
                    previous = part
            found.extend(scanner.finish())
        assert sorted(found) == sorted(read_through(rule, text)[0])

    @given(kind=kinds, previous=st.characters(), char=st.sampled_from("ab1 x/4é\u0430"))
    def test_tells_apart_all_characters_that_rules_do(
        self, kind: tuple[str, dict[str, object]], previous: str, char: str
    ) -> None:
        for automaton in compiled(kind, "redact").automata:
            assert automaton.can_start(previous, char) == automaton.can_start(NEIGHBOURS[neighbour(previous)], char)
