"""The promise of the output window, for any policy, text and cut: what leaves is decided by the whole text alone.

The reference knows no automaton: it asks RE2 about every substring, in its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, product

import re2
from hypothesis import example, given
from hypothesis import strategies as st

from safety.policy import CompiledPolicy
from safety.rules.ban_list import compile_ban_list
from safety.rules.normalise import fold
from safety.rules.port import Form
from safety.window import OutputWindow

PATTERNS = (
    "ab",
    "a+b",
    "(ab|bc)c?",
    "a[^b]c",
    r"\bab\b",
    r"\ba|bb$",
    "^ab",
    "(?i)aB",
    "a.b",
    "(?:ab){2}",
    "a{2,3}",
    r"[ab]+1",
    r"\Bb1",
    "x",
    "a.*c",
    r"b\b",
    "(abc|c)x",
    "bc1",
)
ALPHABET = "abcxB 1\n"
CAP = 5
CONTINUATIONS = ["", *("".join(tail) for size in (1, 2, 3) for tail in product("abc1x ", repeat=size))]
texts = st.text(alphabet=ALPHABET, max_size=24)


@dataclass(frozen=True)
class Case:
    """A rule of the policy under test."""

    pattern: str
    action: str


cases = st.lists(
    st.builds(Case, st.sampled_from(PATTERNS), st.sampled_from(["redact", "redact", "flag", "block"])),
    min_size=1,
    max_size=4,
)


def policy(rules: list[Case]) -> CompiledPolicy:
    return CompiledPolicy.compile(
        {
            "id": "p",
            "version": 1,
            "rules": [
                {
                    "name": f"r{number}",
                    "kind": "regex",
                    "stage": ["output"],
                    "action": rule.action,
                    "config": {
                        "pattern": rule.pattern,
                        "match_chars_max": CAP,
                        "replacement": f"<{number}>",
                        "normalise": False,
                    },
                }
                for number, rule in enumerate(rules)
            ],
        }
    )


def matches(pattern: str, text: str) -> list[tuple[int, int]]:
    """Every (start, end) within the cap at which the pattern matches, in its place in the text, by RE2 alone."""
    found = []
    for start in range(len(text)):
        for end in range(start + 1, min(len(text), start + CAP) + 1):
            whole = re2.compile(rf"(?s)^.{{{start}}}(?-s:(?:{pattern})).{{{len(text) - end}}}$")
            if whole.search(text) is not None:
                found.append((start, end))
    return found


def redacted(rules: list[Case], text: str) -> str:
    """The whole-text decision: overlapping matches are one group, replaced as its leftmost, then first rule says."""
    spans = sorted(
        (start, number, end)
        for number, rule in enumerate(rules)
        if rule.action == "redact"
        for start, end in matches(rule.pattern, text)
    )
    parts, cursor = [], 0
    for start, number, end in spans:
        if start >= cursor or not parts:
            parts += [text[cursor:start], f"<{number}>"]
            cursor = end
        cursor = max(cursor, end)
    return "".join(parts) + text[cursor:]


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[low:high] for low, high in pairwise(edges)]


def stream(window: OutputWindow, channel: str, pieces: list[str]) -> str:
    released = "".join(window.feed(channel, piece).text for piece in pieces)
    return released + window.finish(channel).text


def still() -> float:
    return 0.0


class TestWindow:
    @given(rules=cases, text=texts, places=st.lists(st.integers(0, 100), max_size=8))
    @example(rules=[Case("a+b", "redact")], text="aaaaaaab", places=[3])
    @example(rules=[Case(r"\bab\b", "redact"), Case("bb$", "block")], text="ab abb", places=[1, 4])
    @example(rules=[Case("ab", "redact"), Case("bc1", "redact")], text="abc1", places=[1, 2, 3])
    @example(rules=[Case("(abc|c)x", "redact")], text="abcx", places=[1, 2, 3])
    def test_releases_the_redaction_of_the_whole_text_for_every_cut(
        self, rules: list[Case], text: str, places: list[int]
    ) -> None:
        window = OutputWindow(policy(rules), monotonic=still)
        got = stream(window, "0:content", cut(text, places))
        blocking = [rule for rule in rules if rule.action == "block"]
        if any(matches(rule.pattern, text) for rule in blocking):
            assert window.blocked
        else:
            assert not window.blocked
            assert got == redacted(rules, text)

    @given(rules=cases, text=texts, places=st.lists(st.integers(0, 100), max_size=8))
    def test_gives_the_same_text_and_verdicts_however_it_is_cut(
        self, rules: list[Case], text: str, places: list[int]
    ) -> None:
        whole, pieces = (OutputWindow(policy(rules), monotonic=still) for _ in range(2))
        assert stream(pieces, "0", cut(text, places)) == stream(whole, "0", [text] if text else [])
        assert pieces.verdicts == whole.verdicts
        assert pieces.blocked == whole.blocked

    @given(
        rules=st.lists(st.builds(Case, st.sampled_from(PATTERNS), st.just("block")), min_size=1, max_size=3), text=texts
    )
    def test_lets_no_character_of_a_blocked_match_leave(self, rules: list[Case], text: str) -> None:
        window = OutputWindow(policy(rules), monotonic=still)
        got = stream(window, "0", list(text))
        starts = [start for rule in rules for start, _ in matches(rule.pattern, text)]
        assert text.startswith(got)
        if starts:
            assert window.blocked
            first_end = min(end for rule in rules for _, end in matches(rule.pattern, text))
            assert len(got) <= min(
                start for rule in rules for start, end in matches(rule.pattern, text) if end == first_end
            )

    @given(pattern=st.sampled_from([p for p in PATTERNS if not p.endswith("$")]), text=texts)
    def test_holds_back_nothing_that_no_continuation_could_match(self, pattern: str, text: str) -> None:
        """Whatever is held has a reason: some continuation, or the end, covers the first held character."""
        window = OutputWindow(policy([Case(pattern, "block")]), monotonic=still)
        got = "".join(window.feed("0", char).text for char in text)
        if window.blocked or len(got) == len(text):
            return
        reasons = (span for tail in CONTINUATIONS for span in matches(pattern, text + tail))
        assert any(start <= len(got) < end for start, end in reasons)

    @given(rules=cases, text=texts, other=texts, order=st.lists(st.booleans(), max_size=48))
    def test_keeps_interleaved_channels_apart(
        self, rules: list[Case], text: str, other: str, order: list[bool]
    ) -> None:
        quiet = [Case(rule.pattern, "redact") for rule in rules]
        window = OutputWindow(policy(quiet), monotonic=still)
        sources = {"0:content": list(text), "0:tool:1": list(other)}
        got = {"0:content": "", "0:tool:1": ""}
        for first in [*order, *[True] * len(text), *[False] * len(other)]:
            channel = "0:content" if first else "0:tool:1"
            if sources[channel]:
                got[channel] += window.feed(channel, sources[channel].pop(0)).text
        for channel in got:
            got[channel] += window.finish(channel).text
        assert got == {"0:content": redacted(quiet, text), "0:tool:1": redacted(quiet, other)}


# Also white space of several kinds, a soft hyphen, full-width and Cyrillic letters (a, c, x).
WORDS = ("ab", "abc", "bca", "c x", "a b c", "1", "é", "ß", "\u0441  x")
LETTERS = "abcx1 éßÉs\u0301\u200b\u00ad\t\n\u00a0\uff41\u0410\u0441\u0445"


SAME = {"a": "\u0430\u0251", "o": "\u043e\u03bf", "e": "\u0435", "p": "\u0440", "c": "\u0441", "i": "\u0456"}


def disguises(char: str) -> list[str]:
    """What a reader would still take for `char`."""
    if char == " ":
        return [" ", "  ", "\t", " \n ", "\u00a0", "\u2003\u200b ", " " * 40]
    wide = chr(ord(char) + 0xFEE0) if "!" <= char <= "~" else char
    odd = [char, char, char.upper(), wide, f"{char}\u00ad", f"{char}\u200b", f"{char}\u0301", *SAME.get(char, "")]
    return [one for one in odd if fold(one) != " "]


class TestBanListWindow:
    @given(
        words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=4, unique=True),
        text=st.text(alphabet=LETTERS, max_size=24),
        places=st.lists(st.integers(0, 100), max_size=8),
        whole_words=st.booleans(),
        look_alikes=st.booleans(),
    )
    @example(words=["ß"], text="1s ß", places=[], whole_words=True, look_alikes=True)
    @example(words=["c x"], text="\u0441 \u200b\n x", places=[2, 3], whole_words=True, look_alikes=True)
    def test_agrees_with_a_search_of_the_folded_text(
        self, words: list[str], text: str, places: list[int], whole_words: bool, look_alikes: bool
    ) -> None:
        form = Form.SKELETON if look_alikes else Form.FOLDED
        document = {
            "id": "p",
            "version": 1,
            "rules": [
                {
                    "name": "ban",
                    "kind": "ban_list",
                    "stage": ["output"],
                    "action": "redact",
                    "config": {
                        "words": words,
                        "whole_words": whole_words,
                        "look_alikes": look_alikes,
                        "replacement": "#",
                    },
                }
            ],
        }
        window = OutputWindow(CompiledPolicy.compile(document), monotonic=still)
        got = stream(window, "0", cut(text, places))
        assert got == self.redacted(words, text, whole_words=whole_words, form=form)

    def redacted(self, words: list[str], text: str, *, whole_words: bool, form: Form) -> str:
        words = [fold(word, form=form) for word in words]
        folded: list[tuple[str, int]] = []
        for index, original in enumerate(text):
            for char in fold(original, form=form):
                if not (char == " " and folded and folded[-1][0] == " "):
                    folded.append((char, index))
        plain = "".join(char for char, _ in folded)
        spans = []
        for word in words:
            for at in range(len(plain) - len(word) + 1):
                end = at + len(word)
                inside = (at > 0 and plain[at - 1].isalnum() and plain[at].isalnum()) or (
                    end < len(plain) and plain[end].isalnum() and plain[end - 1].isalnum()
                )
                if plain[at:end] == word and not (whole_words and inside):
                    spans.append((folded[at][1], folded[end - 1][1] + 1))
        parts, cursor = [], 0
        for start, end in sorted(spans):
            if start >= cursor or not parts:
                parts += [text[cursor:start], "#"]
                cursor = end
            cursor = max(cursor, end)
        return "".join(parts) + text[cursor:]

    @given(
        phrase=st.sampled_from(["build a pipe bomb", "\u0434\u0435\u043d\u044c\u0433\u0438", "co-op"]),
        data=st.data(),
        before=st.sampled_from(["", "please ", "x\n"]),
        places=st.lists(st.integers(0, 200), max_size=12),
    )
    def test_lets_no_character_of_a_disguised_phrase_leave(
        self, phrase: str, data: st.DataObject, before: str, places: list[int]
    ) -> None:
        """Doubled white space, invisible characters, other widths, cases and scripts, cut anywhere."""
        disguised = "".join(data.draw(st.sampled_from(disguises(char))) for char in phrase)
        rule = {
            "name": "ban",
            "kind": "ban_list",
            "stage": ["output"],
            "action": "block",
            "config": {"words": [phrase]},
        }
        window = OutputWindow(CompiledPolicy.compile({"id": "p", "version": 1, "rules": [rule]}), monotonic=still)
        got = stream(window, "0", cut(f"{before}{disguised} now", places))
        assert window.blocked
        assert got == before

    @given(
        words=st.lists(st.text(alphabet="abc", min_size=1, max_size=4), min_size=1, max_size=6),
        text=st.text(alphabet="abc ", max_size=40),
    )
    def test_finds_what_the_native_automaton_finds(self, words: list[str], text: str) -> None:
        """At each place where words end, the longest of them."""
        banned = compile_ban_list(words=words, whole_words=False)
        scanner = banned.scanner()
        streamed = {
            (span.end, span.start)
            for position, char in enumerate(text)
            for span in scanner.step(position, text[position - 1] if position else "", char)
        }
        longest: dict[int, int] = {}
        for last, length in banned.native.iter(text):
            longest[last + 1] = min(longest.get(last + 1, last), last + 1 - length)
        assert streamed == set(longest.items())
