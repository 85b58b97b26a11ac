"""Step 4, GUARDRAIL: what a rule did, told truthfully. Written by guard, window and engines; read by the timeline.

Invariant: a rule that did not run to its end never reads as `ran`, and a verdict never holds a byte of the text.
"""

from dataclasses import dataclass
from enum import StrEnum


class Stage(StrEnum):
    """Where a rule is applied."""

    PROMPT = "prompt"
    OUTPUT = "output"


class Action(StrEnum):
    """What a match does."""

    BLOCK = "block"
    REDACT = "redact"
    FLAG = "flag"


class RuleState(StrEnum):
    """How the rule itself fared. Only RAN means that it looked at the whole text."""

    RAN = "ran"
    STOPPED = "stopped"  # an earlier block ended the stream before the rule saw all of it
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    REFUSED = "refused"  # the breaker was open or the queue full


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One rule on one request and stage. `spent_us` is microseconds, None where it was not measured for this rule."""

    rule: str
    stage: Stage
    action: Action
    state: RuleState
    hits: int
    acted: bool
    spent_us: int | None = None
    shadow: Action | None = None  # what the rule would do if it were not in shadow mode

    def line(self) -> str:
        """`stage=prompt rule=ssn action=block state=ran hits=1 acted=yes us=35`; rule names hold no space."""
        acted = "yes" if self.acted else "no"
        what = f"stage={self.stage} rule={self.rule} action={self.action}"
        text = f"{what} state={self.state} hits={self.hits} acted={acted}"
        text = text if self.shadow is None else f"{text} shadow={self.shadow}"
        return text if self.spent_us is None else f"{text} us={self.spent_us}"
