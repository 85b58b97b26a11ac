"""In which order credit is used up. Pure; called by `billing.ledger.credits`.

Invariant: no grant gives more than it has, and together they give no more than is asked.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """What is left of a grant. `paid` = bought with money; otherwise a gift."""

    grant_id: UUID
    left_nano: int
    paid: bool
    granted_at: datetime
    expires_at: datetime | None


def plan_burn(grants: Iterable[Remaining], *, wanted_nano: int, at: datetime) -> list[tuple[UUID, int]]:
    """How much of which grant pays `wanted_nano`: what expires first, gifts before money, then the oldest."""
    usable = [grant for grant in grants if grant.left_nano > 0 and (grant.expires_at is None or grant.expires_at > at)]
    burns = []
    for grant in sorted(usable, key=_order):
        part = min(grant.left_nano, wanted_nano)
        if part > 0:
            burns.append((grant.grant_id, part))
            wanted_nano -= part
    return burns


def _order(grant: Remaining) -> tuple[bool, float, bool, datetime, UUID]:
    ends = grant.expires_at
    return (ends is None, ends.timestamp() if ends else 0.0, grant.paid, grant.granted_at, grant.grant_id)
