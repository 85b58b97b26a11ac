"""A failover that loses the last writes: scripts and model go back together, while workers and gateways keep what they
were told. Claims, fences and sequence numbers of the lost past meet a queue that must answer them as the model does.
"""

from __future__ import annotations

import copy

from hypothesis.stateful import precondition, rule

from fairqueue.model import PoolModel
from stores.redis import Client
from tests.property.fairqueue.test_lua_against_model import PoolMachine, drive

Copy = dict[bytes, tuple[bytes, int]]


async def copied(redis: Client, prefix: str) -> Copy:
    """Every key of a pool as a replica has it, with the milliseconds that it has left."""
    names = [name async for name in redis.scan_iter(match=f"{prefix}*", count=1_000)]
    return {name: (await redis.dump(name), max(await redis.pttl(name), 0)) for name in names}


async def promote(redis: Client, prefix: str, replica: Copy) -> None:
    names = [name async for name in redis.scan_iter(match=f"{prefix}*", count=1_000)]
    if names:
        await redis.delete(*names)
    for name, (value, ttl_ms) in replica.items():
        await redis.restore(name, ttl_ms, value)


class FailoverMachine(PoolMachine):
    replica: tuple[Copy, PoolModel] | None = None

    @rule()
    def the_replica_has_all(self) -> None:
        self.replica = (self.run(copied(self.redis, self.queue.keys.prefix)), copy.deepcopy(self.model))

    @precondition(lambda self: self.replica is not None)
    @rule()
    def it_is_promoted_and_lacks_the_rest(self) -> None:
        assert self.replica is not None
        keys, model = self.replica
        self.run(promote(self.redis, self.queue.keys.prefix, keys))
        self.model = copy.deepcopy(model)


class TestFailover:
    def test_leaves_a_queue_that_does_what_the_model_does(self, valkey_url: str) -> None:
        drive(FailoverMachine, valkey_url, examples=15)
