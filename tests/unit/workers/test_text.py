"""What the simulated engine says."""

from __future__ import annotations

import pytest

from workers.engines.simulated.model import LocalModel
from workers.engines.simulated.text import Wish, continue_answer, decide_answer
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


class TestContinueAnswer:
    @pytest.mark.parametrize("bytewise", [False, True])
    @pytest.mark.parametrize("prompt", ["Tell me of rivers.", "say: 水は the the the 🌊 the end"])
    def test_gives_the_rest_of_an_answer_wherever_it_broke_off(self, model, prompt, bytewise):
        ids, text = model.chat(messages=[{"role": "user", "content": prompt}], tools=None)
        whole = decide(model, text, bytewise=bytewise)
        for cut in range(1, len(whole.tokens)):
            rest = continue_answer(
                tokenizer=model.tokenizer,
                eos=model.eos,
                prompt=[*ids, *whole.tokens[:cut]],
                wish=Wish(max_tokens=200 - cut),
                bytewise=bytewise,
            )
            assert rest is not None
            assert rest.tokens == whole.tokens[cut:]
            assert rest.pieces == whole.pieces[cut:]
            assert rest.finish_reason == whole.finish_reason

    def test_goes_on_to_the_same_length_when_the_end_is_ignored(self, model):
        ids, text = model.complete("Once upon a time")
        whole = decide(model, text, ignore_eos=True, max_tokens=90)
        rest = continue_answer(
            tokenizer=model.tokenizer,
            eos=model.eos,
            prompt=[*ids, *whole.tokens[:40]],
            wish=Wish(max_tokens=50, ignore_eos=True),
            bytewise=False,
        )
        assert rest is not None
        assert rest.tokens == whole.tokens[40:]
        assert rest.finish_reason == "length"

    def test_knows_no_answer_in_another_prompt(self, model):
        ids, _ = model.complete("Nothing is lost here")
        wish = Wish(max_tokens=9)
        rest = continue_answer(tokenizer=model.tokenizer, eos=model.eos, prompt=ids, wish=wish, bytewise=False)
        assert rest is None
