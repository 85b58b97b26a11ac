"""Time as a port. Nobody reads a clock outside the `Clock` handed in at the edge."""

from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """Wall time for what is written down, monotonic time for durations."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, UTC."""

    def monotonic(self) -> float:
        """Seconds that never run backwards; only differences mean anything."""


@dataclass(slots=True)
class FakeClock:
    """A clock that moves when told to."""

    wall_ms: int = 1_800_000_000_000
    elapsed: float = 0.0

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic(self) -> float:
        return self.elapsed

    def advance(self, *, ms: int) -> None:
        self.wall_ms += ms
        self.elapsed += ms / 1000
