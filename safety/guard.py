"""Step 4, GUARDRAIL: the prompt gate (pure rules; `check_prompt_with` also awaits guardrails-ai rules)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from safety.engines.pool import ValidatorPool
from safety.policy import CompiledPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptVerdict:
    """`redacted_texts` has the same length and order as the texts given, or is None when nothing changed."""

    blocked: bool
    blocked_by: str | None
    redacted_texts: tuple[str, ...] | None
    verdicts: tuple[str, ...]


def check_prompt(policy: CompiledPolicy, texts: Sequence[str], *, monotonic: Callable[[], float]) -> PromptVerdict: ...


async def check_prompt_with(
    policy: CompiledPolicy, texts: Sequence[str], *, pool: ValidatorPool | None, monotonic: Callable[[], float]
) -> PromptVerdict:
    """What the gateway calls: pure rules first, then the policy's guardrails-ai rules (none: costs nothing)."""
    ...
