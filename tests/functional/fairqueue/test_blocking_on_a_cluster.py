"""The blocking client of Django and Celery on a real cluster, through each of its nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from billing.closing.watermark import read_watermark
from billing.management.composition import usage_reviver
from billing.metering.keys import KNOWN_POOLS
from fairqueue.keys import PoolKeys
from stores.redis_blocking import CONNECTIONS_MAX, WAIT_SECONDS, blocking_redis
from tenants import epochs, limit_events
from tenants.limits import keys
from tests.functional.fairqueue.cluster import Cluster
from tests.functional.fairqueue.test_cluster import ADD, KEY, slot_on_its_way
from tests.functional.tenants.cast import ACME

NAMES = [f"key{number}".encode() for number in range(12)]


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Redis]:
    """By the URL of a node that has not the slot of KEY."""
    cluster.empty()
    blocking_redis.cache_clear()
    client = blocking_redis(cluster.urls_without(KEY)[0])
    yield client
    client.close()
    blocking_redis.cache_clear()


class TestACall:
    def test_finds_its_node(self, client: Redis) -> None:
        for name in NAMES:
            client.set(name, b"value")
        assert [client.get(name) for name in NAMES] == [b"value"] * len(NAMES)
        assert sorted(client.scan_iter("key*", count=500)) == sorted(NAMES)
        assert [client.register_script(ADD)(keys=[KEY], args=[]) for _ in range(2)] == [1, 2]
        assert client.publish("w:revoked", b"x") == 0

    def test_follows_a_slot_that_is_on_its_way(self, client: Redis, cluster: Cluster) -> None:
        key = "w:{p:moving}:"
        with slot_on_its_way(cluster, key):
            client.set(key, b"value")
            assert client.get(key) == b"value"

    def test_has_the_bounds_of_a_single_server_s_on_every_node(self, client: Redis) -> None:
        pools = [node.redis_connection.connection_pool for node in client.get_nodes()]  # type: ignore[attr-defined]
        assert len(pools) == 3
        for pool in pools:
            assert (pool.max_connections, pool.timeout) == (CONNECTIONS_MAX, WAIT_SECONDS)
            limits = [pool.connection_kwargs[name] for name in ("socket_timeout", "socket_connect_timeout")]
            assert limits == [WAIT_SECONDS, WAIT_SECONDS]

    @pytest.mark.usefixtures("cluster")
    def test_of_one_server_stays_as_it_was(self, valkey_url: str) -> None:
        assert type(blocking_redis(valkey_url)) is Redis


class TestRooms:
    """What Django and Celery do with it."""

    def test_epochs_are_pushed(self, client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(epochs, "blocking_redis", lambda url: client)
        assert epochs.push(tenant_id=ACME, tenant_epoch=2, epochs={"key": -3}, revoked=["key"])
        assert client.hgetall(keys.epoch(ACME)) == {b"tenant": b"2", b"key": b"-3"}
        assert client.smembers(keys.TENANTS) == {ACME.encode()}

    def test_alerts_are_looked_for(self, client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(limit_events, "blocking_redis", lambda url: client)
        client.sadd(keys.ALERTED, ACME)
        client.sadd(keys.TENANTS, ACME)
        assert (limit_events.relay_alerts(), limit_events.relay_all_alerts()) == (0, 0)
        assert client.smembers(keys.ALERTED) == set()

    def test_a_close_reads_how_far_the_meter_is(self, client: Redis) -> None:
        before: tuple[int, int] = client.time()  # type: ignore[assignment]
        assert read_watermark(client, revive=usage_reviver()).low_ms >= before[0] * 1_000
        client.sadd(KNOWN_POOLS, "pool")
        client.xadd(PoolKeys("pool").usage, {"a": "b"}, id="5-0")
        assert read_watermark(client, revive=usage_reviver()).low_ms == 5
