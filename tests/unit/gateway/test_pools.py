from collections.abc import AsyncIterator

import orjson
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from contracts.clock import FakeClock
from contracts.errors import Unavailable
from gateway.pools import PoolWorkers


class Beats:
    """The two commands that `PoolWorkers` uses, over a dictionary."""

    def __init__(self, **beats: bytes) -> None:
        self.beats = beats
        self.scans = 0
        self.broken = False

    async def scan_iter(self, match: str, count: int) -> AsyncIterator[str]:
        self.scans += 1
        if self.broken:
            raise RedisConnectionError("gone")
        for name in self.beats:
            yield name

    async def mget(self, keys: list[str]) -> list[bytes | None]:
        return [self.beats.get(key) for key in keys]


def beat(**fields: str) -> bytes:
    return orjson.dumps({"pool": "p", "state": "ready"} | fields)


def workers(beats: Beats, clock: FakeClock) -> PoolWorkers:
    return PoolWorkers(beats, clock=clock, fresh_seconds=1.0, retry_after_ms=5_000)


class TestPoolWorkers:
    async def test_asks_redis_once_a_second(self) -> None:
        beats, clock = Beats(w1=beat()), FakeClock()
        pool = workers(beats, clock)
        for _ in range(10):
            await pool.require("p")
        clock.advance(ms=1_000)
        await pool.require("p")
        assert beats.scans == 2

    @pytest.mark.parametrize("value", [beat(state="engine_down"), beat(pool="q"), b"not json", b"[]", b'{"pool":7}'])
    async def test_counts_only_ready_workers_of_the_pool(self, value: bytes) -> None:
        with pytest.raises(Unavailable) as caught:
            await workers(Beats(w1=value), FakeClock()).require("p")
        assert (caught.value.code, caught.value.retry_after_ms) == ("no_worker", 5_000)

    async def test_fails_closed_and_tries_again(self) -> None:
        beats, clock = Beats(w1=beat()), FakeClock()
        beats.broken = True
        pool = workers(beats, clock)
        with pytest.raises(Unavailable, match="does not answer"):
            await pool.require("p")
        beats.broken = False
        await pool.require("p")
