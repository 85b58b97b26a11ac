"""Keys that are asked for at once, on a database that the test answers for."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from contracts.errors import PermissionDenied, Unavailable
from controlplane.reads import keys
from controlplane.reads.keys import KeyLoads
from controlplane.reads.prices import PriceCache
from stores.system import SystemClock


class Database:
    """Answers each call when it is let; knows no key, and a suspended one."""

    def __init__(self) -> None:
        self.calls: list[Sequence[Sequence[str]]] = []
        self.answers = asyncio.Event()
        self.away = False

    async def ask(self, _call: Callable[..., Any], asked: Sequence[Sequence[str]]) -> list[Any]:
        self.calls.append(asked)
        await self.answers.wait()
        if self.away:
            raise Unavailable("away", retry_after_ms=2_000)
        return [PermissionDenied("suspended") if digests == ["suspended"] else None for digests in asked]


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Database:
    database = Database()
    monkeypatch.setattr(keys, "from_database", database.ask)
    return database


def asked_for(loads: KeyLoads, *names: str) -> list["asyncio.Future[Any]"]:
    return [asyncio.ensure_future(loads([name])) for name in names]


async def ends(calls: Sequence["asyncio.Future[Any]"]) -> list[Any]:
    """What each call gave or raised."""
    async with asyncio.timeout(5):
        await asyncio.wait(calls)
    return [call.exception() or call.result() for call in calls]


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class TestKeyLoads:
    async def test_reads_together_what_is_asked_for_while_it_reads(self, database: Database) -> None:
        calls = asked_for(KeyLoads(PriceCache(clock=SystemClock())), "first", "second", "suspended", "third")
        await _turns()
        database.answers.set()
        found = await ends(calls)
        assert [type(one) for one in found] == [type(None), type(None), PermissionDenied, type(None)]
        assert database.calls == [[["first"]], [["second"], ["suspended"], ["third"]]]

    async def test_tells_everybody_that_the_database_is_away_with_an_error_of_their_own(
        self, database: Database
    ) -> None:
        database.away = True
        calls = asked_for(KeyLoads(PriceCache(clock=SystemClock())), "first", "second", "third")
        await _turns()
        database.answers.set()
        errors = await ends(calls)
        assert all(isinstance(error, Unavailable) for error in errors)
        assert len({id(error) for error in errors}) == 3
        assert len(database.calls) == 2

    async def test_lets_others_read_on_when_the_reader_is_cancelled(self, database: Database) -> None:
        reader, *others = asked_for(KeyLoads(PriceCache(clock=SystemClock())), "first", "second", "third")
        await _turns()
        reader.cancel()
        await _turns()
        database.answers.set()
        assert await ends(others) == [None, None]
        assert reader.cancelled()
