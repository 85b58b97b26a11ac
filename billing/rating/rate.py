"""Token counts times a price card. The one place where a request's cost is computed.

Called by admission (the hold), worker and settler (the final frame and the settlement), meter (the row) and ledger; so
cost in the response = ClickHouse = ledger. Invariants: whole nano-units in and out; cached tokens are charged once, at
their own price; reasoning tokens are a part of the completion and never added; no settled cost passes its worst case.
"""

from dataclasses import dataclass

from contracts.money import PriceCard
from contracts.tokens import TokenCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Nano-units by meter. `input_nano` is for the part of the prompt that was not cached."""

    input_nano: int
    cached_nano: int
    output_nano: int

    @property
    def total_nano(self) -> int:
        return self.input_nano + self.cached_nano + self.output_nano


def cost(card: PriceCard, counts: TokenCounts) -> Cost:
    """Nano-units of `counts` under `card`: (prompt - cached) x input + cached x cached price + completion x output."""
    return Cost(
        input_nano=(counts.prompt - counts.cached) * card.input_nano,
        cached_nano=counts.cached * card.cached_nano,
        output_nano=counts.completion * card.output_nano,
    )


def worst_case(card: PriceCard, *, prompt_tokens: int, output_tokens_max: int) -> int:
    """The most, in nano-units, that a request of these sizes can cost, whatever part of its prompt is cached.

    `output_tokens_max` is max_tokens x choices. Raises ValueError for a negative size.
    """
    if min(prompt_tokens, output_tokens_max) < 0:
        raise ValueError("token counts are never negative")
    return prompt_tokens * max(card.input_nano, card.cached_nano) + output_tokens_max * card.output_nano
