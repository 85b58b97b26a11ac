"""What the simulated engine is expected to say is what it says, for every length."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from infra.chaos.spelling import make_spell
from workers.engines.simulated.text import Wish, decide_answer

MODEL = Path(__file__).resolve().parents[3] / "infra" / "models" / "smollm2-135m-instruct"


class TestSpell:
    @pytest.mark.parametrize("tokens", [1, 2, 7, 40, 160])
    def test_is_the_engines_answer(self, tokens: int) -> None:
        said = "3 water gate river stone mill"
        answer = decide_answer(
            tokenizer=Tokenizer.from_file(str(MODEL / "tokenizer.json")),
            eos=None,
            prompt_text=f"user\nsay: {said}<|im_end|>\n",
            wish=Wish(max_tokens=tokens, ignore_eos=True),
            bytewise=False,
        )
        assert make_spell(model_dir=MODEL)(said, tokens) == "".join(answer.pieces)
