"""Who acts: carried into every service, written into every event."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """`name` is shown in the audit trail: `user:ada`, `key:…wxyz`, `system:seed`. `address` is the client's, if any."""

    name: str
    address: str | None = None


SYSTEM = Actor(name="system")
