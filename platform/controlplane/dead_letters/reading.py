"""Dead letters of every pool, and the evidence that workers left of the deaths. Called by the console's page.

Reads only. Invariant: of what a request asked for, only numbers and switches are given out, never a text of its tenant.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import orjson
from redis import Redis

from billing.metering.keys import KNOWN_POOLS
from contracts.jobs import Ticket
from contracts.wire import WireError, decode
from controlplane.models import ServedModel
from fairqueue.keys import PoolKeys

SHOWN = 200  # of one pool, the newest


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """`losses`: one line for each loss: what it was, its worker, its attempt, when (Unix milliseconds)."""

    pool: str
    entry_id: str
    request_id: str
    tenant_id: str
    attempts: int
    deaths: int
    lapses: int
    losses: tuple[str, ...]
    at_ms: int
    ticket: Ticket
    body: bytes

    @property
    def asked(self) -> dict[str, Any]:
        """Sampling numbers and switches, the seed among them."""
        body = orjson.loads(self.body)
        return {name: value for name, value in sorted(body.items()) if isinstance(value, bool | int | float)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """An engine's death as its worker saw it. `log`: what the engine said last."""

    worker: str
    at_ms: int
    log: str
    held: int


def newest(client: Redis) -> list[DeadLetter]:
    """The newest of each pool, newest first. Raises redis.exceptions.RedisError."""
    found = [letter for pool in _pools(client) for letter in _read(client, pool)]
    return sorted(found, key=lambda letter: letter.at_ms, reverse=True)


def count(client: Redis) -> int:
    """How many there are in all pools. Raises redis.exceptions.RedisError."""
    return sum(int(client.xlen(PoolKeys(pool).dead)) for pool in _pools(client))


def find(client: Redis, *, pool: str, entry_id: str) -> DeadLetter | None:
    """One of them. None for an entry that is not there, or that this release cannot read."""
    entries = cast("list[Any]", client.xrange(PoolKeys(pool).dead, entry_id, entry_id, count=1))
    return next((letter for entry in entries if (letter := _letter(pool, entry)) is not None), None)


def deaths_of(client: Redis, letter: DeadLetter) -> list[Death]:
    """Oldest first; those that are older than a week are forgotten."""
    keys = PoolKeys(letter.pool)
    ids = cast("list[bytes]", client.lrange(keys.deaths_of(letter.request_id), 0, -1))
    texts = [client.get(keys.death(death.decode())) for death in ids]
    return [_death(orjson.loads(text)) for text in texts if isinstance(text, bytes)]


def _pools(client: Redis) -> list[str]:
    """Those that are offered, and those whose usage was ever seen."""
    seen = cast("set[bytes]", client.smembers(KNOWN_POOLS))
    return sorted({pool.decode() for pool in seen} | set(ServedModel.objects.values_list("pool", flat=True)))


def _read(client: Redis, pool: str) -> list[DeadLetter]:
    entries = cast("list[Any]", client.xrevrange(PoolKeys(pool).dead, count=SHOWN))
    return [letter for entry in entries if (letter := _letter(pool, entry)) is not None]


def _letter(pool: str, entry: tuple[bytes, Mapping[bytes, bytes]]) -> DeadLetter | None:
    entry_id, fields = entry
    try:
        ticket = decode(Ticket, fields[b"ticket"])
    except (WireError, KeyError):
        return None
    return DeadLetter(
        pool=pool,
        entry_id=entry_id.decode(),
        request_id=ticket.request_id,
        tenant_id=ticket.tenant_id,
        attempts=_number(fields, b"attempt"),
        deaths=_number(fields, b"deaths"),
        lapses=_number(fields, b"lapses"),
        losses=tuple(fields.get(b"losses", b"").decode().splitlines()),
        at_ms=_number(fields, b"at_ms"),
        ticket=ticket,
        body=fields.get(b"body") or b"{}",
    )


def _number(fields: Mapping[bytes, bytes], name: bytes) -> int:
    return int(fields.get(name) or 0)


def _death(document: Mapping[str, Any]) -> Death:
    return Death(worker=document["worker"], at_ms=document["at_ms"], log=document["log"], held=len(document["held"]))
