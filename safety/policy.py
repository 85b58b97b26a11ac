"""Step 4, GUARDRAIL: a policy document becomes a CompiledPolicy."""

from dataclasses import dataclass
from typing import Any


class PolicyError(ValueError):
    """The document is not a policy; `errors` is a list of (field path, message)."""

    errors: list[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledPolicy:
    policy_id: str
    version: int

    @classmethod
    def compile(cls, document: dict[str, Any]) -> "CompiledPolicy":
        """Raises PolicyError. Cached by (id, version)."""
        ...
