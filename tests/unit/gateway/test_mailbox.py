"""The inboxes on a subscription that the test drives: messages, and a connection that breaks."""

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

import msgpack

from contracts.wire import encode
from fairqueue.messages import Released
from gateway.stream.mailbox import Mailbox, Signal
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
