"""How far the usage streams are taken by both groups, and what nobody could take. Blocking Redis, no Django.

Called before a period is checked. Invariant: the clock is Redis's own, read before the streams are looked at, so a
record that came in between is above the mark.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from redis import Redis
from redis.exceptions import ResponseError

from billing.closing.compare import Gap
from billing.metering.keys import KNOWN_POOLS, dead_usage, usage_stream
from billing.metering.streams import GROUPS
from contracts.jobs import UsageRecord
from contracts.wire import WireError

LETTERS_MAX = 10_000  # of one pool that a close looks at; more is a gap by itself

Revive = Callable[[Mapping[bytes, bytes]], UsageRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A usage record that no group could take. `tenant_id` "" = unreadable: it may be anybody's."""

    pool: str
    entry_id: str
    ended_at_ms: int
    tenant_id: str
    request_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """Everything that ended before `low_ms` is in ClickHouse and in the ledger, but for the letters."""

    low_ms: int
    letters: tuple[DeadLetter, ...]
    cut: tuple[str, ...]  # pools with more letters than were read

    def gaps(self, *, tenant_id: str, start_ms: int, end_ms: int) -> list[Gap]:
        """What of it holds up a tenant's period."""
        found = []
        if self.low_ms < end_ms:
            behind = max(0, end_ms - self.low_ms) // 1_000
            found.append(Gap(kind="lag", detail=f"usage is taken up to {behind} s before the period's end"))
        found += [
            Gap(
                kind="dead_letter",
                detail=f"{letter.entry_id} of pool {letter.pool}: {letter.reason}"[:500],
                at_ms=letter.ended_at_ms,
                request_id=letter.request_id,
            )
            for letter in self.letters
            if letter.tenant_id in ("", tenant_id) and start_ms <= letter.ended_at_ms < end_ms
        ]
        found += [Gap(kind="dead_letter", detail=f"pool {pool} has more than {LETTERS_MAX}") for pool in self.cut]
        return found


def read_watermark(redis: Redis, *, revive: Revive) -> Watermark:
    """Raises redis.exceptions.RedisError."""
    clock: Any = redis.time()
    low_ms = clock[0] * 1_000 + clock[1] // 1_000
    letters: list[DeadLetter] = []
    cut = []
    names: Any = redis.smembers(KNOWN_POOLS)
    for pool in sorted(name.decode() for name in names):
        low_ms = min(low_ms, *(_taken_ms(redis, pool, group) for group in GROUPS), low_ms)
        page: Any = redis.xrange(dead_usage(pool), count=LETTERS_MAX + 1)
        letters += [_letter(pool, entry_id.decode(), fields, revive) for entry_id, fields in page[:LETTERS_MAX]]
        cut += [pool] if len(page) > LETTERS_MAX else []
    return Watermark(low_ms=low_ms, letters=tuple(letters), cut=tuple(cut))


def _taken_ms(redis: Redis, pool: str, group: str) -> int:
    """Records older than this are finished by the group; 2^53 when it has finished all there are."""
    key = usage_stream(pool)
    try:
        groups: Any = redis.xinfo_groups(key)
    except ResponseError as error:
        if "no such key" in str(error):
            return 2**53  # a pool that has never had a request
        raise
    for info in groups:
        if info["name"].decode() != group:
            continue
        if info["pending"]:
            pending: Any = redis.xpending(key, group)
            return _milliseconds(pending["min"])
        after: Any = redis.xrange(key, min=f"({info['last-delivered-id'].decode()}", count=1)
        return _milliseconds(after[0][0]) if after else 2**53
    first: Any = redis.xrange(key, count=1)
    return _milliseconds(first[0][0]) if first else 2**53


def _letter(pool: str, entry_id: str, fields: Mapping[bytes, bytes], revive: Revive) -> DeadLetter:
    tenant_id = request_id = ""
    original = fields.get(b"dead_id", entry_id.encode()).decode()
    ended_at_ms = _milliseconds(original)
    try:
        record = revive(fields)
        tenant_id, ended_at_ms = str(UUID(record.tenant_id)), record.billed_at_ms
        request_id = record.request_id
    except (WireError, KeyError, ValueError, TypeError):
        pass  # it may be anybody's, which is what an empty tenant says
    return DeadLetter(
        pool=pool,
        entry_id=original,
        ended_at_ms=ended_at_ms,
        tenant_id=tenant_id,
        request_id=request_id,
        reason=fields.get(b"dead_reason", b"").decode(errors="replace"),
    )


def _milliseconds(entry_id: bytes | str) -> int:
    text = entry_id.decode() if isinstance(entry_id, bytes) else entry_id
    return int(text.partition("-")[0])
