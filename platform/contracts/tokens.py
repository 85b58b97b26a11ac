"""Token counts of one request, by kind, as the engine reports them (never counted from chunks)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """`cached` is a part of `prompt`, `reasoning` a part of `completion` (OpenAI's convention)."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    reasoning: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.cached <= self.prompt:
            raise ValueError(f"cached tokens {self.cached} are not within the prompt's {self.prompt}")
        if not 0 <= self.reasoning <= self.completion:
            raise ValueError(f"reasoning tokens {self.reasoning} are not within the completion's {self.completion}")

    @property
    def total(self) -> int:
        return self.prompt + self.completion
