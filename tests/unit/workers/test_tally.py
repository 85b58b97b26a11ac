"""Counting the tokens of a text as it comes, for an engine that tells them only at the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from workers.engines.http import SETTLE_CHARS, _Tally

MODEL = Path(__file__).resolve().parents[3] / "infra" / "models" / "smollm2-135m-instruct"
TOKENIZER = Tokenizer.from_file(str(MODEL / "tokenizer.json"))

words = st.text(st.sampled_from("abcdeßé東'_-0123.,!\n\t "), min_size=1, max_size=9)


def count(text: str) -> int:
    return len(TOKENIZER.encode(text, add_special_tokens=False).ids)


def count_behind_a_mark(text: str) -> int:
    """As of a tokenizer that puts a token of its own before every text."""
    return 1 + count(text)


def tally(pieces: list[str], counted: Callable[[str], int]) -> _Tally:
    found = _Tally(counted)
    for piece in pieces:
        found.add({"choices": [{"index": 0, "delta": {"content": piece}}]})
    return found


class TestEstimate:
    @settings(max_examples=60, deadline=None)
    @given(pieces=st.lists(st.one_of(words, words.map(lambda word: " " + word)), min_size=1, max_size=80))
    @pytest.mark.parametrize("counted", [count, count_behind_a_mark])
    def test_is_the_count_of_the_whole_text_however_it_is_cut(
        self, counted: Callable[[str], int], pieces: list[str]
    ) -> None:
        assert tally(pieces, counted).completion == {0: counted("".join(pieces))}

    def test_looks_at_a_long_text_but_once(self) -> None:
        seen: list[int] = []

        def counted(text: str) -> int:
            seen.append(len(text))
            return count(text)

        found = tally([" word"] * 2_000, counted)
        assert found.completion == {0: 2_000}
        assert max(seen) <= SETTLE_CHARS + len(" word")
