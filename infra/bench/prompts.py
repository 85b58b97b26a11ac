"""Prompts of the benches: text of a stated length that no cache has seen. Pure, the same for one seed.

Invariant: two prompts of one run differ from their first words on, so neither side of a comparison ever finds a prefix
of an earlier prompt in its cache, and both sides do the same work.
"""

from __future__ import annotations

import random

WORDS = (
    *("river", "stone", "gate", "water", "keeper", "count", "field", "measure", "spring", "level", "mountain"),
    *("mill", "current", "season", "bridge", "path", "morning", "letter", "market", "signal", "harbour", "winter"),
    *("garden", "window", "paper", "engine", "copper", "silver", "meadow", "thunder", "village", "station"),
    *("cloud", "lantern", "harvest", "valley", "anchor", "compass", "orchard", "timber"),
)


def make_prompt(*, seed: int, index: int, words: int) -> str:
    """A prompt of about `words` words, unique for (seed, index)."""
    source = random.Random(f"{seed}/{index}")  # noqa: S311 - repeatable prompts, no secret
    opening = f"{source.getrandbits(64):016x}"
    return f"{opening} Tell a long story about: " + " ".join(source.choices(WORDS, k=max(0, words - 6)))
