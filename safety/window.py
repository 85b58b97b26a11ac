"""Step 4, GUARDRAIL: the output window (pure). Holds back what can still become a match."""

from collections.abc import Callable
from dataclasses import dataclass

from safety.policy import CompiledPolicy


@dataclass(frozen=True, slots=True)
class Released:
    """Text that may leave now; after `blocked` nothing of this request leaves any more, on any channel."""

    text: str
    blocked: bool


class OutputWindow:
    """`OutputWindow(policy, monotonic=…)`; channel = "0:content", "0:reasoning", "0:tool:1" … (choice first)."""

    def __init__(self, policy: CompiledPolicy, *, monotonic: Callable[[], float]) -> None: ...

    def feed(self, channel: str, text: str) -> Released: ...

    def finish(self, channel: str) -> Released: ...

    @property
    def blocked(self) -> bool: ...

    @property
    def verdicts(self) -> tuple[str, ...]: ...
