"""A tenant's policy as the gateway finds it: published, or nothing is served."""

import pytest
from redis.asyncio import Redis

from contracts.errors import Unavailable
from contracts.tenancy import PolicyRef
from controlplane.reads.policies import PublishedPolicies
from safety.defaults import demo_document
from safety.published import PolicyStore


class TestPublishedPolicies:
    async def test_gives_what_redis_holds(self, redis: Redis) -> None:
        store = PolicyStore(redis)
        await store.put(demo_document(policy_id="demo", version=2))
        policy = await PublishedPolicies(store=store).get(PolicyRef(policy_id="demo", version=2))
        assert (policy.policy_id, policy.version) == ("demo", 2)

    async def test_refuses_a_policy_that_was_never_published(self, redis: Redis) -> None:
        with pytest.raises(Unavailable, match="no published version") as refused:
            await PublishedPolicies(store=PolicyStore(redis)).get(PolicyRef(policy_id="draft", version=0))
        assert (refused.value.status, refused.value.code) == (503, "policy_not_published")
