"""The inboxes on a subscription that the test drives: messages, and a connection that breaks."""

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

import msgpack
import pytest

from contracts.wire import encode
from fairqueue.messages import Released
from gateway.stream.mailbox import Inbox, Mailbox, Signal
from tests.unit.gateway.frames import REQUEST, final


class Server:
    """A subscription that the test drives, in place of `stores.subscription.Subscriber.listen`."""

    def __init__(self) -> None:
        self.found: Callable[[], None] = lambda: None
        self.lost: Callable[[], None] = lambda: None
        self.heard: Callable[[bytes], None] = lambda _: None

    async def listen(
        self,
        *,
        channel: str,
        on_subscribed: Callable[[], None],
        on_lost: Callable[[], None],
        on_message: Callable[[bytes], None],
    ) -> NoReturn:
        assert channel == "w:mb:g1"
        self.found, self.lost, self.heard = on_subscribed, on_lost, on_message
        on_subscribed()
        await asyncio.Event().wait()
        raise AssertionError("the event is never set")

    def publish(self, *entries: list[Any]) -> None:
        self.heard(msgpack.packb(list(entries), use_bin_type=False))


def mailbox_on(server: Server) -> Mailbox:
    return Mailbox(channel="w:mb:g1", listen=server.listen)


class TestMailbox:
    async def test_fans_out_by_request_and_to_every_reader_of_one(self) -> None:
        server = Server()
        mailbox = mailbox_on(server)
        first, second, other = mailbox.open(REQUEST), mailbox.open(REQUEST), mailbox.open("other")
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(mailbox.run())
            await mailbox.subscribed.wait()
            for inbox in (first, second, other):
                assert await inbox.get(seconds=1) is Signal.RESYNC
            server.publish(["f", REQUEST, "1-a", 1, [b"{}", b"[]"]], ["e", "other", "1-b", 0, encode(final())])
            want = Released(request_id=REQUEST, epoch="1-a", first_seq=1, frames=[b"{}", b"[]"])
            assert [await first.get(seconds=1), await second.get(seconds=1)] == [want, want]
            end = await other.get(seconds=1)
            assert end.final == final()
            running.cancel()

    async def test_tells_every_reader_that_messages_may_be_missing_once_it_hears_again(self) -> None:
        server = Server()
        mailbox = mailbox_on(server)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(mailbox.run())
            await mailbox.subscribed.wait()
            inbox = mailbox.open(REQUEST)
            server.lost()
            assert not mailbox.subscribed.is_set()
            server.found()
            assert mailbox.subscribed.is_set()
            assert await inbox.get(seconds=1) is Signal.RESYNC
            server.publish(["f", REQUEST, "1-a", 1, [b"{}"]])
            assert isinstance(await inbox.get(seconds=1), Released)
            running.cancel()

    async def test_reads_the_logs_when_a_message_has_another_shape(self) -> None:
        mailbox = mailbox_on(Server())
        inbox = mailbox.open(REQUEST)
        mailbox.deliver(b"\xc1 not msgpack")
        assert await inbox.get(seconds=1) is Signal.RESYNC

    async def test_forgets_closed_inboxes(self) -> None:
        mailbox = mailbox_on(Server())
        inboxes = [mailbox.open(f"r{number % 10}") for number in range(100)]
        for inbox in inboxes:
            mailbox.close(inbox)
            mailbox.close(inbox)
        assert mailbox.open_inboxes == 0


class TestPatience:
    """`Inbox.get` waits for each frame of each stream."""

    async def read(self, inbox: Inbox, *, seconds: float) -> asyncio.Task[Any]:
        """A reader that waits already."""
        reading = asyncio.ensure_future(inbox.get(seconds=seconds))
        await asyncio.sleep(0)
        return reading

    async def test_ends_a_wait_for_which_nothing_came(self) -> None:
        inbox = Inbox(request_id=REQUEST, bytes_max=1_000)
        assert await inbox.get(seconds=0.001) is None
        assert await inbox.get(seconds=0.001) is None

    async def test_of_a_wait_before_does_not_end_a_later_one(self) -> None:
        inbox = Inbox(request_id=REQUEST, bytes_max=1_000)
        first = await self.read(inbox, seconds=0.001)
        inbox.put(Signal.RESYNC)
        assert await first is Signal.RESYNC
        second = await self.read(inbox, seconds=20)
        assert await inbox_after(0.01, second) == "waits"
        inbox.put(Signal.OVERFLOW)
        assert await second is Signal.OVERFLOW

    async def test_may_be_shorter_than_before(self) -> None:
        inbox = Inbox(request_id=REQUEST, bytes_max=1_000)
        first = await self.read(inbox, seconds=1_000)
        inbox.put(Signal.RESYNC)
        await first
        assert await asyncio.wait_for(inbox.get(seconds=0.001), 20) is None

    async def test_is_left_by_a_reader_that_is_cancelled(self) -> None:
        inbox = Inbox(request_id=REQUEST, bytes_max=1_000)
        first = await self.read(inbox, seconds=20)
        first.cancel()
        await asyncio.wait({first})
        inbox.put(Signal.RESYNC)
        assert await inbox.get(seconds=20) is Signal.RESYNC

    async def test_costs_one_timer_for_many_waits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        inbox, loop, made = Inbox(request_id=REQUEST, bytes_max=10_000), asyncio.get_running_loop(), []
        call_at = loop.call_at
        monkeypatch.setattr(loop, "call_at", lambda *args, **named: made.append(args[0]) or call_at(*args, **named))
        for _ in range(100):
            reading = await self.read(inbox, seconds=10)
            inbox.put(Signal.RESYNC)
            assert await reading is Signal.RESYNC
        assert len(made) == 1


async def inbox_after(seconds: float, reading: asyncio.Task[Any]) -> str:
    """What has become of a reader once an earlier wait's time is over."""
    done, _ = await asyncio.wait({reading}, timeout=seconds)
    return "ended" if done else "waits"
