"""A circuit breaker, pure: the caller brings the time. After `failures_max` failures in a row it opens for `rest_s`
seconds, then lets one call through to see.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Breaker:
    failures_max: int
    rest_s: float
    failures: int = 0
    opened_at: float | None = None

    def admits(self, *, now: float) -> bool:
        """May a call be made? While open, one call is let through per rest."""
        if self.opened_at is None:
            return True
        if now - self.opened_at < self.rest_s:
            return False
        self.opened_at = now
        return True

    def succeeded(self) -> None:
        self.failures = 0
        self.opened_at = None

    def failed(self, *, now: float) -> None:
        self.failures += 1
        if self.failures >= self.failures_max:
            self.opened_at = now
