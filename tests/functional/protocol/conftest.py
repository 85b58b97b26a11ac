"""A tenant slot and a pool whose clocks the test moves, on one server and on a cluster; the meter's stores."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from fairqueue.policy import QueueBounds
from fairqueue.queue import FairQueue
from gateway.settlement import Sweeper
from stores.redis import Client, open_redis
from tenants.limits.buckets import Limits
from tests.functional.billing.conftest import clickhouse, owner, usage
from tests.functional.fairqueue.cluster import Cluster
from tests.functional.fairqueue.conftest import START_US, Pool, cluster
from tests.functional.tenants.cast import ACME, KEY, NOON

__all__ = ["clickhouse", "cluster", "owner", "usage"]


@dataclass
class Slots:
    """Both slots of a request, and the settler that sweeps them."""

    limits: Limits
    pool: Pool
    sweeper: Sweeper

    def advance(self, *, ms: int) -> None:
        """The tenant slot's clock alone; `pool.advance` moves the other."""
        self.limits.time_ms += ms


@pytest.fixture(params=["one server", "cluster"])
def slots_url(request: pytest.FixtureRequest) -> str:
    """One server, and a node of a cluster that has not the tenant's slot."""
    if request.param == "cluster":
        nodes: Cluster = request.getfixturevalue("cluster")
        nodes.empty()
        return nodes.urls_without(f"{{t:{ACME}}}")[0]
    return str(request.getfixturevalue("valkey_url"))


@pytest.fixture
async def slots(slots_url: str) -> AsyncIterator[Slots]:
    """Empty slots; the tenant's key is known."""
    redis: Client = open_redis(slots_url)
    await redis.flushall()
    limits = Limits(redis, time_ms=NOON)
    await limits.set_epochs(tenant_id=ACME, keys={KEY: 1}, tenant_epoch=1)
    now = [START_US]
    queue = FairQueue(redis, "demo", QueueBounds(), now_us=lambda: now[0])

    async def pools() -> list[str]:
        return ["demo"]

    yield Slots(
        limits=limits,
        pool=Pool(queue=queue, redis=redis, now=now),
        sweeper=Sweeper(limits=limits, queue_of=lambda _: queue, pools=pools),
    )
    await redis.aclose(close_connection_pool=True)
