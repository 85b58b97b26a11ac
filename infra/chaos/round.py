"""One round: load, faults, quiet, proof. Called by `manage.py chaos` and tests/e2e.

Invariant: a round is drawn from its seed alone; what it finds is judged only after everything that was thrown at the
platform is over and either all is settled, or the time for that has passed.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal

import psycopg
from redis.exceptions import RedisError

from infra.bench.instance import InstanceFailed
from infra.chaos.books import read_books, read_left
from infra.chaos.clients import Asked, Client, plan_calls, without_said
from infra.chaos.facts import Books, Call, Violation
from infra.chaos.faults import Fault, plan_faults, strike
from infra.chaos.installation import Installation
from infra.chaos.invariants import Spell, judge, sums
from stores.clickhouse import ClickHouseError

LOAD_SECONDS = 3.0
SETTLE_SECONDS = 120.0
_LOOK_SECONDS = 0.5
_LOG_LINES_MAX = 12
_ALARMING = ("Traceback", "Error", "exception", "internal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a seed makes of a round."""

    seed: int
    calls: tuple[Asked, ...]
    faults: tuple[Fault, ...]


@dataclass(slots=True, kw_only=True)
class Result:
    """What became of it. `hit`: what each fault hit; `ends`: how the clients' last connections ended."""

    plan: Plan
    calls: list[Call] = field(default_factory=list)
    hit: list[str] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    sums: dict[str, int | str] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    evidence: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def accepted(self) -> dict[str, str]:
        """Tenant by id of every request that was accepted."""
        return {item.request_id: call.tenant for call in self.calls for item in call.connections if item.is_accepted}


def seed_of_round(*, seed: int, number: int) -> int:
    """Rounds of one run have seeds of their own, so that one can be repeated by itself: `--rounds 1 --seed THIS`."""
    return seed if number == 0 else random.Random(f"{seed}/{number}").getrandbits(32)  # noqa: S311 - a draw, no secret


def plan_round(*, seed: int, count: int, tenants: Sequence[str], load_seconds: float = LOAD_SECONDS) -> Plan:
    """Pure."""
    chance = random.Random(seed)  # noqa: S311 - a draw, no secret
    calls = plan_calls(chance, count=count, tenants=tenants, load_seconds=load_seconds)
    return Plan(seed=seed, calls=calls, faults=plan_faults(chance, load_seconds=load_seconds + 1.0))


class Rounds:
    """Rounds on one installation; what earlier ones left in the books is not judged again."""

    def __init__(self, installation: Installation, *, model: str, spell: Spell | None) -> None:
        self._installation = installation
        self._spell = spell
        self._known: set[tuple[str, int]] = set()
        self._owed = Decimal(0)
        self._client = Client(gateways=installation.gateways, keys=installation.keys, model=model)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def open(self) -> None:
        """Takes note of what is in the books before the first round (the greeting of `up`)."""
        until = time.monotonic() + SETTLE_SECONDS
        while not await self._is_quiet():
            if time.monotonic() > until:
                raise InstanceFailed("the platform did not come to rest before the first round")
            await asyncio.sleep(_LOOK_SECONDS)
        self._remember(await read_books(self._installation, self._client, accepted={}))

    async def run(self, plan: Plan, *, ended: Callable[[], None] = lambda: None) -> Result:
        """The round, judged. Raises InstanceFailed when the platform does not come back."""
        began = time.monotonic()
        result = Result(plan=plan)
        async with asyncio.TaskGroup() as group:
            known = self._spell is not None
            asked = [item if known else without_said(item) for item in plan.calls]
            calls = [group.create_task(self._client.make(item, ended=ended)) for item in asked]
            faults = [group.create_task(self._strike(fault)) for fault in plan.faults]
        result.calls = [task.result() for task in calls]
        result.hit = [task.result() for task in faults]
        await self._installation.wait_serving()
        books = await self._settled(result.accepted)
        mine = self._new_of(books)
        result.violations = judge(result.calls, mine, spell=self._spell)
        result.sums = sums(result.calls, mine)
        for row in mine.rows:
            result.outcomes[row.outcome] = result.outcomes.get(row.outcome, 0) + 1
        if result.violations:
            result.evidence = evidence(result, self._installation)
        self._remember(books)
        result.seconds = time.monotonic() - began
        return result

    async def _strike(self, fault: Fault) -> str:
        await asyncio.sleep(fault.at)
        return f"{fault.name}: {await strike(fault, self._installation)}"

    async def _settled(self, accepted: Mapping[str, str]) -> Books:
        """The books once nothing is left to settle, or as they are when the time for that is over."""
        until = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < until:
            if await self._is_quiet():
                with suppress(psycopg.Error, RedisError, ClickHouseError, OSError):
                    books = await read_books(self._installation, self._client, accepted=accepted)
                    if _is_whole(books, accepted):
                        return books
            await asyncio.sleep(_LOOK_SECONDS)
        try:
            return await read_books(self._installation, self._client, accepted=accepted)
        except (psycopg.Error, RedisError, ClickHouseError, OSError) as error:
            raise InstanceFailed(f"a store does not answer after the round: {type(error).__name__}: {error}") from error

    async def _is_quiet(self) -> bool:
        try:
            return (await asyncio.to_thread(read_left, self._installation.valkey_url)).is_nothing
        except RedisError:
            return False

    def _new_of(self, books: Books) -> Books:
        rows = tuple(row for row in books.rows if (row.request_id, row.revision) not in self._known)
        postings = tuple(item for item in books.postings if (item.request_id, item.revision) not in self._known)
        old = {request_id for request_id, _ in self._known}
        attempts = tuple(line for line in books.attempts if line.request_id not in old)
        owed = books.ledger_owed - self._owed
        return replace(books, rows=rows, postings=postings, attempts=attempts, ledger_owed=owed)

    def _remember(self, books: Books) -> None:
        self._known = {(row.request_id, row.revision) for row in books.rows}
        self._known |= {(posting.request_id, posting.revision) for posting in books.postings}
        self._owed = books.ledger_owed


def _is_whole(books: Books, accepted: Mapping[str, str]) -> bool:
    rows = {row.request_id for row in books.rows}
    posted = {posting.request_id for posting in books.postings}
    told = {state.request_id for state in books.states if state.status == "ended" and state.tokens is not None}
    return rows == posted and accepted.keys() <= rows and accepted.keys() <= told


def evidence(result: Result, installation: Installation) -> list[str]:
    """What the clients saw of each request with a violation, and the lines of all logs that name it."""
    wanted = sorted({violation.request_id for violation in result.violations if violation.request_id})[:5]
    found = []
    for request_id in wanted:
        for call in result.calls:
            if any(item.request_id == request_id for item in call.connections):
                seen = [
                    f"{item.status} after {item.after_seq}: {len(item.events)} events, {item.end} {item.code}"
                    for item in call.connections
                ]
                found.append(f"{request_id} {call.kind} of {call.tenant}: {'; '.join(seen)}")
        for log in sorted((installation.instance.home / "logs").glob("*")):
            lines = [line for line in log.read_text(errors="replace").splitlines() if request_id in line]
            found += [f"{log.name}: {line[:400]}" for line in lines[-_LOG_LINES_MAX:]]
    for log in sorted((installation.instance.home / "logs").glob("*")):
        alarming = [line for line in log.read_text(errors="replace").splitlines() if any(w in line for w in _ALARMING)]
        found += [f"{log.name}: {line[:400]}" for line in alarming[-_LOG_LINES_MAX:]]
    return found
