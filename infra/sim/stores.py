"""The two slots of a simulated installation: the pool (the production reference model) and the tenant's holds. Pure.

`TenantSlot` keeps states and idempotency as the protocol has them and leaves every counter to the limits' reference
model, which is handed in. Invariant: one method is one script; each is safe to repeat.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from contracts.tokens import TokenCounts

US_PER_MS = 1_000


class LimitsModel(Protocol):
    """The reference model of the limits: requests are numbered, the time is an attribute."""

    now: int

    def hold(self, number: int, limits: list[object], *, prompt: int, output: int, price: int, cut: bool) -> str: ...
    def start(self, number: int, attempt: int) -> bool: ...
    def settle(self, number: int, *, prompt: int, output: int, cost: int) -> tuple[bool, int]: ...
    def void(self, number: int) -> bool: ...


class Refused(Exception):
    """The limits or the idempotency record say no."""


@dataclass(slots=True, kw_only=True)
class Hold:
    """One admitted request. `counts` are those of its settlement."""

    number: int
    request_id: str
    key: str
    deadline_ms: int
    state: str = "held"
    counts: TokenCounts | None = None
    settlements: int = 0  # how many changed anything: one at most


@dataclass(slots=True)
class TenantSlot:
    """Holds and idempotency of one tenant."""

    limits: LimitsModel
    caps: list[object]
    holds: dict[str, Hold] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)

    def hold(self, now_us: int, *, request_id: str, key: str, prompt: int, output: int, ttl_ms: int) -> Hold:
        """Idempotency record and hold in one script. Raises Refused."""
        known = self.holds.get(self.keys.get(key, request_id))
        if known is not None and known.state != "voided":
            return known
        if request_id in self.holds:
            raise Refused("voided")
        number = len(self.holds)
        self.limits.now = now_us // US_PER_MS
        if self.limits.hold(number, self.caps, prompt=prompt, output=output, price=1, cut=False) != "granted":
            raise Refused("limit")
        if key:
            self.keys[key] = request_id
        deadline = now_us // US_PER_MS + ttl_ms
        self.holds[request_id] = Hold(number=number, request_id=request_id, key=key, deadline_ms=deadline)
        return self.holds[request_id]

    def start(self, now_us: int, *, request_id: str, attempt: int) -> bool:
        self.limits.now = now_us // US_PER_MS
        hold = self.holds[request_id]
        started = self.limits.start(hold.number, attempt)
        if started:
            hold.state = "running"
        return started

    def settle(self, now_us: int, *, request_id: str, counts: TokenCounts) -> None:
        """The first settlement wins."""
        self.limits.now = now_us // US_PER_MS
        hold = self.holds[request_id]
        cost = counts.prompt + counts.completion
        first, _ = self.limits.settle(hold.number, prompt=counts.prompt, output=counts.completion, cost=cost)
        if first:
            hold.state, hold.counts = "settled", counts
            hold.settlements += 1

    def void(self, now_us: int, *, request_id: str) -> bool:
        self.limits.now = now_us // US_PER_MS
        hold = self.holds[request_id]
        voided = self.limits.void(hold.number)
        if voided and hold.state != "voided":
            hold.state = "voided"
            if self.keys.get(hold.key) == request_id:
                del self.keys[hold.key]
        return voided

    def due(self, now_us: int, *, margin_ms: int) -> list[str]:
        """Holds past their enqueue deadline that nobody has started."""
        late = now_us // US_PER_MS - margin_ms
        return [hold.request_id for hold in self.holds.values() if hold.state == "held" and hold.deadline_ms < late]
