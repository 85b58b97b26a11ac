"""A gateway admits in turns: what comes at once waits in line, and not side by side until every store seems slow."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from contracts.errors import Unavailable
from gateway import admission
from gateway.admission import Admission
from gateway.services import GatewayServices, GatewaySettings


class Refused(Exception):
    """The end of the way that a turn covers."""


class Draft(SimpleNamespace):
    """What the hold gets."""


def gateway(*, seconds: float = 5.0) -> Admission:
    """An admission whose stores are this test's own."""

    class Always:
        async def __aenter__(self) -> None: ...

        async def __aexit__(self, *_: object) -> None: ...

    async def require(_: str) -> None: ...

    services = SimpleNamespace(
        settings=GatewaySettings(admission_seconds=seconds),
        mailbox=SimpleNamespace(open_inboxes=0),
        limits=SimpleNamespace(gate=SimpleNamespace(watch=Always)),
        workers=SimpleNamespace(require=require),
    )
    return Admission(cast("GatewayServices", services))


async def admit(one: Admission, number: int) -> None:
    caller = SimpleNamespace(context=None)
    with pytest.raises(Refused):
        await one.admit(
            cast("Any", caller), cast("Any", number), request_id=str(number), idempotency=None, received_at=0.0
        )


class TestTurns:
    async def test_are_taken_in_the_order_of_arrival_and_never_by_more_than_they_are(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        inside, most, order = 0, 0, list[int]()

        async def draft(_self: Admission, _context: object, asked: int, *_: object) -> Draft:
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            order.append(asked)
            await asyncio.sleep(0)
            return Draft(card=SimpleNamespace(pool="p"))

        async def hold(_self: Admission, _caller: object, _draft: Draft) -> None:
            nonlocal inside
            await asyncio.sleep(0)
            inside -= 1
            raise Refused

        monkeypatch.setattr(Admission, "_draft", draft)
        monkeypatch.setattr(Admission, "_hold", hold)
        one = gateway()
        async with asyncio.TaskGroup() as tasks:
            for number in range(5 * admission.TURNS):
                tasks.create_task(admit(one, number))
        assert most == admission.TURNS
        assert order == list(range(5 * admission.TURNS))  # and a refusal gives its turn back

    async def test_are_not_waited_for_without_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        never = asyncio.Event()

        async def draft(*_: object) -> None:
            await never.wait()

        monkeypatch.setattr(Admission, "_draft", draft)
        one = gateway(seconds=0.01)
        caller = cast("Any", SimpleNamespace(context=None))
        call = {"request_id": "r", "idempotency": None, "received_at": 0.0}
        async with asyncio.TaskGroup() as tasks:
            full = [tasks.create_task(one.admit(caller, cast("Any", 1), **call)) for _ in range(admission.TURNS)]
            await asyncio.sleep(0)
            with pytest.raises(Unavailable, match="more to admit than it can"):
                await one.admit(caller, cast("Any", 1), **call)
            for task in full:
                task.cancel()
