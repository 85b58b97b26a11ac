"""What the simulated engine says."""

from __future__ import annotations

import pytest

from workers.engines.simulated.model import LocalModel
from workers.engines.simulated.text import Wish, decide_answer
from workers.engines.simulated.toy import write_toy_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return LocalModel.load(write_toy_model(tmp_path_factory.mktemp("toy")))


def decide(model, prompt, *, bytewise=False, **wish):
    wish.setdefault("max_tokens", 200)
    return decide_answer(
        tokenizer=model.tokenizer, eos=model.eos, prompt_text=prompt, wish=Wish(**wish), bytewise=bytewise
    )


class TestDecideAnswer:
    def test_is_the_same_for_the_same_prompt_seed_and_choice(self, model):
        assert decide(model, "p", seed=3) == decide(model, "p", seed=3)
        assert decide(model, "p", seed=3) != decide(model, "p", seed=4)
        assert decide(model, "p", choice=0) != decide(model, "p", choice=1)

    def test_says_what_it_is_told_to(self, model):
        answer = decide(model, "<|im_start|>user\nsay: hello 水<|im_end|>\n<|im_start|>assistant\n")
        assert "".join(answer.pieces) == "hello 水"
        assert answer.finish_reason == "stop"
        assert answer.tokens[-1] == model.eos

    def test_counts_the_end_token_within_max_tokens(self, model):
        full = decide(model, "say: hello")
        cut = decide(model, "say: hello", max_tokens=len(full.tokens) - 1)
        assert full.finish_reason == "stop"
        assert cut.finish_reason == "length"

    def test_fills_max_tokens_when_the_end_is_ignored(self, model):
        answer = decide(model, "say: x", ignore_eos=True, max_tokens=50)
        assert len(answer.tokens) == 50
        assert answer.finish_reason == "length"

    def test_releases_whole_characters_only(self, model):
        answer = decide(model, "say: 🌊水", bytewise=True)
        assert len(answer.tokens) == 4 + 3 + 1
        assert [piece for piece in answer.pieces if piece] == ["🌊", "水"]

    def test_ends_before_a_stop_string_that_spans_tokens(self, model):
        answer = decide(model, "say: one two three", stop=("wo t", "zzz"))
        assert "".join(answer.pieces) == "one t"
        assert (answer.finish_reason, answer.stop_reason) == ("stop", "wo t")

    def test_releases_all_text_when_no_stop_string_comes(self, model):
        assert "".join(decide(model, "say: one two", stop=("two!",)).pieces) == "one two"
