"""What leaving an answer does: bounded, whatever the store does meanwhile."""

import asyncio
from typing import Any

import pytest

from gateway.stream import answer as answers
from gateway.stream.answer import CANCEL_TRIES, Answer, release
from gateway.stream.mailbox import Inbox
from tests.factories.jobs import make_ticket


class Stalled:
    """A queue whose store answers nothing, as one that is frozen."""

    def __init__(self) -> None:
        self.asked = 0

    async def cancel(self, **given: Any) -> None:
        self.asked += 1
        await asyncio.Event().wait()


def left(queue: Stalled, *, generation: int | None) -> Answer:
    ticket = make_ticket()
    inbox = Inbox(request_id=ticket.request_id, bytes_max=1)
    return Answer(ticket=ticket, queue=queue, inbox=inbox, generation=generation)  # type: ignore[arg-type]


class TestRelease:
    async def test_ends_although_the_store_is_frozen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """mcp-context-forge#5711, DocsGPT#2769: the shielded clean-up of a lost client hung for ever."""
        monkeypatch.setattr(answers, "CANCEL_SECONDS", 0.01)
        queue = Stalled()
        async with asyncio.timeout(5):
            await release(left(queue, generation=1))
        assert queue.asked == CANCEL_TRIES

    async def test_asks_nothing_where_leaving_cancels_nothing(self) -> None:
        queue = Stalled()
        await release(left(queue, generation=None))
        assert queue.asked == 0
