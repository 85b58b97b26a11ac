"""The ways in which an attempt ends: a verdict, which is closed and settled, or the request given back. Pure."""

from dataclasses import dataclass

from contracts.outcomes import Outcome
from fairqueue.messages import AbortReason, cancel_code


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How an attempt ended. `status`, `message` and `param` only where the outcome's own do not say enough."""

    outcome: Outcome
    error_code: str = ""
    message: str = ""
    status: int = 0
    param: str = ""

    @property
    def is_whole(self) -> bool:
        """The answer came to its end, by the engine or by the guard: everything that was counted is billed."""
        return self.outcome in (Outcome.OK, Outcome.GUARDRAIL)


class GivenBack(Exception):
    """The request is in the queue again, or another worker's: nothing is left to do."""


OK = Verdict(outcome=Outcome.OK)
BLOCKED = Verdict(outcome=Outcome.GUARDRAIL, error_code="content_policy_violation")
LOST = Verdict(outcome=Outcome.FAILED, error_code="worker_lost")
BROKE = Verdict(outcome=Outcome.FAILED, error_code="engine_error")
HOLD_ENDED = Verdict(outcome=Outcome.CANCELLED, error_code="hold_ended")
NO_POLICY = Verdict(
    outcome=Outcome.FAILED,
    error_code="service_unavailable",
    status=503,
    message="The tenant's guardrail policy cannot be read.",
)
ABORTED = {
    AbortReason.CANCELLED: Verdict(outcome=Outcome.CANCELLED, error_code=cancel_code(AbortReason.CANCELLED)),
    AbortReason.REVOKED: Verdict(outcome=Outcome.CANCELLED, error_code=cancel_code(AbortReason.REVOKED)),
    AbortReason.GAP: LOST,
    AbortReason.LOG_FULL: Verdict(
        outcome=Outcome.FAILED, error_code="output_too_large", message="The output is larger than a request may have."
    ),
}
