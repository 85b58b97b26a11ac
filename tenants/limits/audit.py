"""Step 3, LIMITS: counters against what was metered, and counters made anew from it. Used by the beat and by
`manage.py rebuild_limits`; no Django here.

The watermark: every request admitted before it is settled or voided (no open hold is older), so metered usage admitted
before it must be in the counters. What was settled of later admissions is kept beside each counter in slots of five
minutes, for two and a half hours; used = metered below the watermark + slots from it on. Counters that were lost begin
anew with the first hold since: the watermark is not before that, and no slot holds what was admitted before it, however
late it is settled. Invariants: both scripts read and write counters, slots and open holds at one instant, so a
settlement meanwhile makes no difference; a hold that was lost is in no slot and not among the open ones, therefore it
is settled before a rebuild begins to read or after it has written, when what it has counted can be told by its time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stores.lua import load_scripts
from stores.redis import Client
from tenants.limits import keys as names
from tenants.limits.gate import Gate
from tenants.limits.policy import Kind

OPEN_MAX = 20_000
READING_MS = 45_000  # a rebuild that takes longer writes nothing; lost holds are settled then
_SCRIPTS = load_scripts(Path(__file__).parent / "scripts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One counter at the snapshot. `late` was settled of requests admitted at or after the watermark."""

    counter: str
    used: int
    held: int
    window: str  # label, start and end in ms; empty = one window without end, or never counted
    rebuilt_ms: int
    late: int
    held_by_open: int
    known: bool = True  # False: never counted, or lost

    @property
    def start_ms(self) -> int:
        return int(self.window.split(" ")[1]) if self.window else 0

    def is_over(self, now_ms: int) -> bool:
        """Whether its window has ended, so that the next hold begins another."""
        return bool(self.window) and int(self.window.split(" ")[2]) <= now_ms

    @property
    def from_ms(self) -> int:
        """Since when it is known to hold all that was admitted in its window; 0 = not known."""
        return max(self.rebuilt_ms, self.start_ms)

    def drift(self, *, below: int) -> int:
        """What the counter has too much, against `below` metered for admissions of its window below the watermark."""
        return self.used - below - self.late

    @property
    def held_drift(self) -> int:
        return self.held - self.held_by_open


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Counters of one tenant at `now_ms`. `watermark_ms` None: a request has been open for too long to tell.

    `until_ms`: until when a rebuild may write what it makes of this; 0 = it is to be looked at only.
    """

    now_ms: int
    watermark_ms: int | None
    standings: tuple[Standing, ...]
    until_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """What a counter shall hold in the window it names: `below`, metered of what was admitted before `below_ms`, and
    what was settled in it of later admissions.
    """

    counter: str
    kind: Kind
    below: int
    below_ms: int
    window: str


class Audit:
    """Snapshots and rebuilds of a tenant's counters. `time_ms` replaces the slot's clock in tests."""

    def __init__(self, redis: Client, *, gate: Gate, time_ms: int = 0) -> None:
        self._gate = gate
        self._snapshot = _SCRIPTS["audit"].bind(redis)
        self._rebuild = _SCRIPTS["rebuild"].bind(redis)
        self.time_ms = time_ms

    async def snapshot(self, *, tenant_id: str, counters: Sequence[str], reading: bool = False) -> Snapshot:
        """How the counters stand. `reading`: a rebuild follows, and no lost hold is settled until it has written, for
        `READING_MS` at most. Raises Unavailable.
        """
        async with self._gate.call():
            now_ms, watermark_ms, *rows = await self._snapshot(
                keys=[names.holds(tenant_id), names.use(tenant_id)],
                args=[self.time_ms, names.hold(tenant_id, ""), OPEN_MAX, READING_MS if reading else 0, *counters],
            )
        standings = tuple(_standing(name, row) for name, row in zip(counters, rows, strict=False))
        return Snapshot(
            now_ms=now_ms,
            watermark_ms=watermark_ms if watermark_ms >= 0 else None,
            standings=standings,
            until_ms=now_ms + READING_MS if reading else 0,
        )

    async def rebuild(
        self, *, tenant_id: str, snapshot: Snapshot, metered_ms: int, counters: Sequence[Rebuilt]
    ) -> int | None:
        """Write the counters, made of a snapshot for `reading` and of the usage that was recorded until `metered_ms`.

        Returns how many changed; None when nothing was written, because it came too late or another rebuild began.
        A window that is over is left alone. Raises ValueError for a snapshot without a watermark, and Unavailable.
        """
        if snapshot.watermark_ms is None:
            raise ValueError("what has been settled cannot be told")
        args: list[str | int] = [
            self.time_ms, names.hold(tenant_id, ""), snapshot.until_ms, metered_ms,
        ]  # fmt: skip
        for each in counters:
            args += [each.counter, each.kind.value, each.below, each.below_ms, each.window]
        async with self._gate.call():
            changed = int(await self._rebuild(keys=[names.holds(tenant_id), names.use(tenant_id)], args=args))
        return changed if changed >= 0 else None


def _standing(counter: str, row: Sequence[bytes]) -> Standing:
    used, held, window, _cap, rebuilt, late, held_by_open = (field.decode() for field in row)
    return Standing(
        counter=counter,
        used=int(used or 0),
        held=int(held or 0),
        window=window if " " in window else "",
        rebuilt_ms=int(rebuilt.split(" ")[0] or 0),
        late=int(late),
        held_by_open=int(held_by_open),
        known=used != "",
    )
