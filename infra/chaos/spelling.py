"""What the simulated engine says: the text that it was told, over and over, cut after so many tokens.

Used by `manage.py chaos` to know a stream's text without asking the platform. Invariant: made from the model's own
tokenizer and from what the call asked for, from nothing that the platform answered.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from infra.chaos.invariants import Spell


def make_spell(*, model_dir: Path) -> Spell:
    """(text, tokens) -> the first so many tokens of the text repeated."""
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))

    def spell(said: str, tokens: int) -> str:
        unit = tokenizer.encode(said, add_special_tokens=False).ids
        repeated = unit * (tokens // len(unit) + 1)
        return str(tokenizer.decode(repeated[:tokens], skip_special_tokens=True))

    return spell
