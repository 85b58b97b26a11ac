"""Compiling a tenant's pattern: what is taken, what is refused and why, and that neither can take long."""

from __future__ import annotations

import pytest
import re2

from safety.rules.ban_list import compile_ban_list
from safety.rules.charsets import fold_case
from safety.rules.port import Automaton, RuleError
from safety.rules.regex import MATCH_CHARS_DEFAULT, compile_regex
from safety.rules.scanner import CHECKED_MAX


class TestCompileRegex:
    @pytest.mark.parametrize(
        ("pattern", "longest"), [("abc", 3), ("a{2,5}b?", 6), ("a+", MATCH_CHARS_DEFAULT), (r"\bab\b", 2), ("x|yy", 2)]
    )
    def test_knows_the_longest_match(self, pattern: str, longest: int) -> None:
        assert max(automaton.longest for automaton in compile_regex(pattern=pattern)) == longest

    @pytest.mark.parametrize(
        ("pattern", "message"),
        [
            ("(?=a)b", "RE2 does not take"),
            (r"(a)\1", "RE2 does not take"),
            ("a(", "RE2 does not take"),
            (r"a\bb", "beginning or the end"),
            (r"(?:\ba|b)c", "beginning or the end"),
            ("(?m)^a", r"`\(\?m` is not supported"),
            (r"\pL", r"`\\p` is not supported at character 2"),
            ("[[:alpha:]]", "write the ranges"),
            ("a*", "matches the empty text"),
            ("", "1 to 2000 characters"),
            ("a" * 2001, "1 to 2000 characters"),
            ("a(?i){2}", "a quantifier of flags"),  # RE2 repeats the `a`
            ("\ud800", "valid Unicode"),
        ],
    )
    def test_refuses_what_cannot_be_held_back_exactly(self, pattern: str, message: str) -> None:
        with pytest.raises(RuleError, match=message):
            compile_regex(pattern=pattern)

    @pytest.mark.parametrize(
        "pattern",
        ["(a|b)*a(a|b){40}c", "(?:a?){900}b", "((a{30}){30}){30}", r"(?:\w{1,90}x){9}", "(" * 40 + "a" + ")" * 40],
    )
    def test_refuses_a_pattern_that_would_be_costly(self, pattern: str) -> None:
        with pytest.raises(RuleError):
            compile_regex(pattern=pattern)

    def test_caps_the_length_of_a_match_without_a_bound(self) -> None:
        (automaton,) = compile_regex(pattern="ab*c", match_chars_max=4)
        scanner = automaton.scanner()
        found = [scanner.step(i, "", char) for i, char in enumerate("abbcabbbbc")]
        assert [list(spans) for spans in found if spans] == [[(0, 4)]]
        assert scanner.held_from() is None

    def test_tells_of_matches_that_end_together_the_longest(self) -> None:
        """Whatever states their beginnings are in: here three, after one, two and three letters."""
        (automaton,) = compile_regex(pattern="a{1,3}", match_chars_max=9)
        scanner = automaton.scanner()
        assert [scanner.step(place, "", "a") for place in range(5)] == [[(max(0, at - 2), at + 1)] for at in range(5)]

    def test_asks_a_check_a_bounded_number_of_times_for_each_character(self) -> None:
        asked: list[str] = []

        def check(text: str) -> bool:
            asked.append(text)
            return False

        (automaton,) = compile_regex(pattern=r"k(?:[^ ]{2,})", match_chars_max=1_000, check=check)
        scanner = automaton.scanner()
        for place in range(200):
            before = len(asked)
            scanner.step(place, "", "k")
            assert len(asked) - before <= CHECKED_MAX

    def test_takes_for_a_match_what_has_more_beginnings_than_are_checked(self) -> None:
        (automaton,) = compile_regex(pattern=r"k[^ ]{2,}", match_chars_max=1_000, check=lambda _: False)
        scanner = automaton.scanner()
        steps = [scanner.step(place, "", "k") for place in range(CHECKED_MAX + 3)]
        assert steps == [[]] * (CHECKED_MAX + 2) + [[(0, CHECKED_MAX + 3)]]

    def test_answers_for_a_lone_surrogate_too(self) -> None:
        (automaton,) = compile_regex(pattern="ab")
        assert automaton.first("\ud800ab") == 0


class TestFoldCase:
    def test_takes_for_one_letter_what_re2_does(self) -> None:
        letters = [
            char
            for char in map(chr, range(0x110000))
            if char.isprintable() and {char.lower(), char.upper(), char.title(), char.casefold()} != {char}
        ]
        text = "".join(letters)
        wrong = [
            char
            for char in letters
            if {match.group() for match in re2.finditer(f"(?i){re2.escape(char)}", text)}
            != {chr(code) for low, high in fold_case(((ord(char), ord(char)),)) for code in range(low, high + 1)}
        ]
        assert wrong == []

    @pytest.mark.parametrize(
        "pattern", [r"(?i)\w", r"(?i)\W", r"(?i)[\W]", r"(?i)[^\W]", r"(?i)[^\w]", "(?i)[^k]", r"\W"]
    )
    def test_folds_a_class_as_re2_does(self, pattern: str) -> None:
        text = "kKsS_ 1.\u212a\u017f\u00e9\u00c9"
        (automaton,) = compile_regex(pattern=pattern)
        found = [char for place, char in enumerate(text) if automaton.scanner().step(place, "", char)]
        assert found == [match.group() for match in re2.finditer(pattern, text)]

    @pytest.mark.parametrize("text", ["STRASSE", "STRA\u1e9eE", "stra\u00dfe"])
    def test_finds_a_capital_sharp_s(self, text: str) -> None:
        (automaton,) = compile_regex(pattern="(?i)stra(?:\u00df|ss)e")
        scanner = automaton.scanner()
        assert [span for place, char in enumerate(text) for span in scanner.step(place, "", char)] == [(0, len(text))]


class TestFirst:
    @pytest.mark.parametrize(
        "automaton",
        [
            compile_regex(pattern=r"\ba.{28}b\b|cc", match_chars_max=30)[0],
            compile_ban_list(words=["a" + "." * 10 + "cc" + "." * 16 + "b", "cc"]),
        ],
    )
    def test_goes_on_to_a_match_wherever_it_is(self, automaton: Automaton) -> None:
        """A shorter match lies in it, and each of the pieces that are searched ends before, in and behind both."""
        match = "a" + "." * 10 + "cc" + "." * 16 + "b"
        assert [automaton.first("." * gap + match, 1) for gap in range(1, 900)] == list(range(1, 900))
        assert [automaton.first("." * gap + match, gap + 1) for gap in range(1, 300)] == [
            gap + 11 for gap in range(1, 300)
        ]
        assert automaton.first("." * 900 + match, 920) is None
