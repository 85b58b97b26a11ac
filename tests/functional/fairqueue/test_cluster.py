"""Calls on a real cluster find their node, whichever node the URL names, also while a slot moves or a node is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import hiredis
import pytest
from redis import Redis
from redis.asyncio import BlockingConnectionPool
from redis.crc import key_slot
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MovedError, ResponseError

from fairqueue.keys import PoolKeys
from fairqueue.messages import final_of
from fairqueue.queue import FairQueue, QueueBounds
from stores.cluster import REDIRECTS_MAX, Node, key_of
from stores.redis import Client, open_redis
from stores.subscription import Subscriber
from tests.factories.jobs import make_ticket
from tests.functional.fairqueue.cluster import Cluster

KEY = PoolKeys("pool").prefix
ADD = "return redis.call('INCR', KEYS[1])"


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    """On a node that has not the slot of KEY."""
    cluster.empty()
    client = open_redis(cluster.urls_without(KEY)[0])
    yield client
    await client.aclose(close_connection_pool=True)


@contextmanager
def counted(cluster: Cluster, url: str, error: str) -> Iterator[list[int]]:
    """How many answers of this kind the node gave meanwhile."""
    node, found = cluster.node(url), [0]

    def count() -> int:
        said = node.info("errorstats").get(f"errorstat_{error}", {"count": 0})
        return int(said["count"])

    before = count()
    yield found
    found[0] = count() - before
    node.close()


@contextmanager
def slot_on_its_way(cluster: Cluster, key: str) -> Iterator[Redis]:
    """The slot of an empty key is between its node and another; the other's client."""
    slot, source_url, target_url = key_slot(key.encode()), cluster.url_of(key), cluster.urls_without(key)[0]
    source, target = cluster.node(source_url), cluster.node(target_url)
    home, away = source.execute_command("CLUSTER MYID"), target.execute_command("CLUSTER MYID")
    target.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", home)
    source.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", away)
    try:
        yield target
    finally:
        target.flushall()
        for node in (source, target):
            node.execute_command("CLUSTER SETSLOT", slot, "STABLE")
            node.close()


class TestACall:
    async def test_is_sent_on_once_and_goes_straight_from_then_on(self, cluster: Cluster, client: Client) -> None:
        with counted(cluster, cluster.urls_without(KEY)[0], "MOVED") as moved:
            replies = [await client.run_script(ADD, keys=[KEY], args=[]) for _ in range(20)]
        assert replies == list(range(1, 21))
        assert moved == [1]

    async def test_of_redis_py_finds_its_node_too(self, client: Client) -> None:
        await client.set(KEY, b"value")
        assert await client.get(KEY) == b"value"
        await client.xadd(PoolKeys("pool").usage, {"a": "b"})
        [[_, entries]] = await client.xread({PoolKeys("pool").usage: "0"})
        assert [fields for _, fields in entries] == [{b"a": b"b"}]
        assert await client.info("server")

    async def test_follows_a_slot_that_is_on_its_way(self, cluster: Cluster, client: Client) -> None:
        key = "w:{p:moving}:"
        with slot_on_its_way(cluster, key):
            async with asyncio.TaskGroup() as calls:
                tasks = [calls.create_task(client.run_script(ADD, keys=[key], args=[])) for _ in range(20)]
            assert sorted(task.result() for task in tasks) == list(range(1, 21))
            assert await client.get(key) == b"20"

    async def test_asks_another_node_when_the_one_it_knows_is_gone(self, cluster: Cluster, client: Client) -> None:
        await client.run_script(ADD, keys=[KEY], args=[])
        pool = BlockingConnectionPool(host="127.0.0.1", port=1)
        client._nodes._slots[key_slot(KEY.encode())] = Node(pool, reply_seconds=1)
        assert await client.run_script(ADD, keys=[KEY], args=[]) == 2

    async def test_asks_another_node_when_that_of_the_url_is_gone(self, cluster: Cluster, client: Client) -> None:
        await client.run_script(ADD, keys=[KEY], args=[])
        client._nodes.lost(client._nodes.seed)
        with counted(cluster, cluster.urls_without(KEY)[0], "MOVED") as moved:
            assert await client.run_script(ADD, keys=["another"], args=[]) == 1
        assert moved == [0]

    async def test_ends_with_an_error_when_nodes_point_at_each_other(self) -> None:
        async with a_node_that_always_points_at_itself() as (url, asked):
            client = open_redis(url)
            with pytest.raises(MovedError):
                await client.run_script(ADD, keys=[KEY], args=[])
            await client.aclose(close_connection_pool=True)
        assert asked.count(b"EVALSHA") == REDIRECTS_MAX + 1

    async def test_to_nobody_is_an_error_of_redis(self) -> None:
        client = open_redis("redis://127.0.0.1:1/0")
        with pytest.raises(RedisConnectionError):
            await client.run_script(ADD, keys=[KEY], args=[])
        await client.aclose(close_connection_pool=True)


class TestAPipeline:
    async def test_reaches_every_slot_when_it_is_no_transaction(self, client: Client) -> None:
        for _ in range(2):
            async with client.pipeline(transaction=False) as pipe:
                for number in range(12):
                    pipe.incr(f"key{number}")
                last = await pipe.execute()
        assert last == [2] * 12

    async def test_tells_what_failed_and_does_the_rest(self, client: Client) -> None:
        await client.set("text", b"x")
        async with client.pipeline(transaction=False) as pipe:
            pipe.incr("text").set("other", b"y")
            with pytest.raises(ResponseError, match="not an integer"):
                await pipe.execute()
        assert await client.get("other") == b"y"

    async def test_goes_as_a_whole_to_its_slot_when_it_is_a_transaction(self, client: Client) -> None:
        for expected in ([1, 1], [2, 2]):
            async with client.pipeline(transaction=True) as pipe:
                assert await pipe.incr(KEY).incr(KEY + "other").execute() == expected


class TestASubscription:
    async def test_hears_on_any_node_what_a_script_publishes_on_another(self, cluster: Cluster, client: Client) -> None:
        heard: asyncio.Queue[bytes] = asyncio.Queue()
        subscribed = asyncio.Event()
        queue = FairQueue(client, "pool", QueueBounds())
        now_ms = int((await client.time())[0]) * 1_000
        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            listening = tasks.create_task(
                Subscriber(cluster.urls_without(KEY)[1]).listen(
                    channel="w:mb:far",
                    on_subscribed=subscribed.set,
                    on_lost=lambda: None,
                    on_message=heard.put_nowait,
                )
            )
            await subscribed.wait()
            await queue.enqueue(
                make_ticket("r1"),
                mailbox="w:mb:far",
                enqueue_deadline_ms=now_ms + 60_000,
                weight_milli=1_000,
                queued_max=10,
                expires_at_ms=now_ms + 60_000,
            )
            await queue.cancel(request_id="r1", generation=None, reason="cancelled")
            [record] = await queue.unsettled(older_than_ms=0, limit=1)
            await queue.ack(request_id="r1", final=final_of(record, cost_nano=0))
            assert b"r1" in await heard.get()
            listening.cancel()


class TestTheKeyOfACommand:
    @pytest.mark.parametrize(
        ("command", "key"),
        [
            (("GET", "k"), "k"),
            (("BLPOP", "k", 3), "k"),
            (("XREADGROUP", "GROUP", "g", "c", "STREAMS", "k", ">"), "k"),
            (("XREAD", b"STREAMS", b"k", "0"), b"k"),
            (("INFO", "memory"), None),
            (("CLIENT LIST", "TYPE"), None),
            (("PING",), None),
        ],
    )
    def test_is_found(self, command: tuple[object, ...], key: object) -> None:
        assert key_of(command) == key


class PointsAtItself(asyncio.Protocol):
    """A server that answers MOVED to every script, with its own address."""

    def __init__(self, asked: list[bytes]) -> None:
        self._asked, self._parser = asked, hiredis.Reader()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed(data)
        while (command := self._parser.gets()) is not False:
            self._asked.append(command[0])
            port = self._transport.get_extra_info("sockname")[1]
            others = b"+PONG\r\n" if command[0] == b"PING" else b"+OK\r\n"
            self._transport.write(b"-MOVED 1 127.0.0.1:%d\r\n" % port if command[0] == b"EVALSHA" else others)


@asynccontextmanager
async def a_node_that_always_points_at_itself() -> AsyncIterator[tuple[str, list[bytes]]]:
    asked: list[bytes] = []
    loop = asyncio.get_running_loop()
    async with await loop.create_server(lambda: PointsAtItself(asked), "127.0.0.1", 0) as server:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0", asked
