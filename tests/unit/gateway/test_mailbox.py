"""The subscription on a pub/sub that the test drives: messages, silence, and a connection that breaks."""

import asyncio
from typing import Any

import msgpack
from redis.exceptions import ConnectionError as RedisConnectionError

from contracts.wire import encode
from fairqueue.messages import Released
from gateway.stream.mailbox import Mailbox, Signal
from tests.unit.gateway.frames import REQUEST, final


class PubSub:
    """What the mailbox uses of redis-py's, fed by a queue; an exception in it is raised."""

    def __init__(self, feed: "asyncio.Queue[Any]") -> None:
        self.feed = feed
        self.closed = False

    async def subscribe(self, channel: str) -> None:
        self.feed.put_nowait({"type": "subscribe", "channel": channel.encode(), "data": 1})

    async def get_message(self, timeout: float) -> dict[str, Any] | None:  # noqa: ASYNC109 - redis-py's name
        item = await self.feed.get()
        if isinstance(item, Exception):
            raise item
        return item

    async def ping(self) -> None: ...

    async def aclose(self) -> None:
        self.closed = True


class Client:
    def __init__(self, pubsub: PubSub) -> None:
        self._pubsub = pubsub

    def pubsub(self) -> PubSub:
        return self._pubsub

    async def aclose(self) -> None: ...


class Server:
    """Every connection gets a feed of its own."""

    def __init__(self) -> None:
        self.connections: list[PubSub] = []
        self.connected = asyncio.Event()

    def connect(self) -> Client:
        pubsub = PubSub(asyncio.Queue())
        self.connections.append(pubsub)
        self.connected.set()
        return Client(pubsub)

    def publish(self, *entries: list[Any]) -> None:
        data = msgpack.packb(list(entries), use_bin_type=False)
        self.connections[-1].feed.put_nowait({"type": "message", "data": data})


def mailbox_on(server: Server) -> Mailbox:
    return Mailbox(channel="w:mb:g1", connect=server.connect)


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

    async def test_comes_back_after_a_broken_connection_and_tells_every_reader(self) -> None:
        server = Server()
        mailbox = mailbox_on(server)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(mailbox.run())
            await mailbox.subscribed.wait()
            inbox = mailbox.open(REQUEST)
            server.connected.clear()
            server.connections[0].feed.put_nowait(RedisConnectionError("gone"))
            await server.connected.wait()
            assert await inbox.get(seconds=5) is Signal.RESYNC
            server.publish(["f", REQUEST, "1-a", 1, [b"{}"]])
            assert isinstance(await inbox.get(seconds=1), Released)
            assert server.connections[0].closed
            running.cancel()

    async def test_takes_a_server_that_stays_silent_for_dead(self) -> None:
        server = Server()
        mailbox = mailbox_on(server)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(mailbox.run())
            await mailbox.subscribed.wait()
            server.connected.clear()
            for _ in range(3):
                server.connections[0].feed.put_nowait(None)
            await server.connected.wait()
            assert len(server.connections) == 2
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
