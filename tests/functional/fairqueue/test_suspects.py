"""A request that ran at two engine deaths runs alone, so that the third says whether it is what kills them."""

from __future__ import annotations

import pytest

from contracts.jobs import Claim
from fairqueue.messages import Wait
from tests.functional.fairqueue.conftest import Pool
from tests.functional.fairqueue.rules import Rule


async def suspect(pool: Pool, name: str = "killer") -> None:
    """A request that waits after two engine deaths."""
    await pool.enqueue(name, expires_in=600_000)
    for _ in range(2):
        claim = await pool.claim(worker="unlucky")
        assert claim.ticket.request_id == name
        await pool.queue.engine_died(worker_id="unlucky", fences={name: claim.fence})


async def name_of(pool: Pool, worker: str) -> str:
    found = await pool.look(worker=worker)
    return found.ticket.request_id if isinstance(found, Claim) else ""


async def empty_worker_takes_it_and_no_other_beside_it(pool: Pool) -> bool:
    await suspect(pool)
    await pool.enqueue("next")
    return [await name_of(pool, "w1"), await name_of(pool, "w1")] == ["killer", ""]


async def worker_that_has_something_does_not_take_it(pool: Pool) -> bool:
    await pool.enqueue("long")
    await pool.claim(worker="w1")
    await suspect(pool)
    return await name_of(pool, "w1") == ""


async def busy_workers_do_not_starve_it(pool: Pool) -> bool:
    """The first that meets it takes nothing else until it is empty, and then takes it out of turn."""
    await pool.enqueue("long")
    long = await pool.claim(worker="w1")
    await suspect(pool)
    await pool.enqueue("other", tenant_id="basic")
    if await name_of(pool, "w1") or await name_of(pool, "w1"):
        return False
    await pool.queue.hand_back(worker_id="w1", request_id="long", fence=long.fence)
    return await name_of(pool, "w1") == "killer"


async def one_worker_drains_at_a_time(pool: Pool) -> bool:
    for worker in ("w1", "w2"):
        await pool.enqueue(f"long-{worker}")
        await pool.claim(worker=worker)
    await suspect(pool)
    await pool.enqueue("next")
    return [await name_of(pool, "w1"), await name_of(pool, "w2")] == ["", "next"]


async def worker_that_starts_anew_is_bound_to_nothing(pool: Pool) -> bool:
    await pool.enqueue("long")
    await pool.claim(worker="w1")
    await suspect(pool)
    await name_of(pool, "w1")
    await pool.queue.register(worker_id="w1")
    return await pool.redis.hlen(pool.queue.keys.prefix + "alone") == 0


RULES = (
    Rule(empty_worker_takes_it_and_no_other_beside_it, "claim", "if int(deaths) >= deaths_max then run_alone(rid) end"),
    Rule(
        worker_that_has_something_does_not_take_it,
        "claim",
        "if redis.call('EXISTS', held) == 0 then\n          return {rid",
        "if true then\n          return {rid",
    ),
    Rule(busy_workers_do_not_starve_it, "claim", "if drains_for(rid) then return nil, 'drains' end"),
    Rule(one_worker_drains_at_a_time, "claim", "    return false\n  end\n  redis.call('HSET', job_key(rid), 'drain'",
         "  end\n  redis.call('HSET', job_key(rid), 'drain'"),
    Rule(worker_that_starts_anew_is_bound_to_nothing, "register", "redis.call('HDEL', alone, ARGV[2])"),
)  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.holds.__name__)
class TestARule:
    async def test_holds(self, pool: Pool, rule: Rule) -> None:
        assert await rule.holds(pool)

    async def test_does_not_hold_without_its_line(self, pool: Pool, rule: Rule) -> None:
        rule.take_out(pool)
        assert not await rule.holds(pool)


class TestASuspect:
    async def test_is_dead_lettered_when_it_kills_an_engine_alone(self, pool: Pool) -> None:
        await suspect(pool)
        claim = await pool.claim(worker="w1")
        report = await pool.queue.engine_died(worker_id="w1", fences={"killer": claim.fence})
        assert (report.dead_lettered, report.requeued) == (1, 0)
        await pool.enqueue("next")
        assert await name_of(pool, "w1") == "next"

    async def test_that_was_a_bystander_ends_like_any_other(self, pool: Pool) -> None:
        await suspect(pool)
        claim = await pool.claim(worker="w1")
        await pool.end(claim)
        await pool.enqueue("next")
        assert await name_of(pool, "w1") == "next"

    async def test_whose_drained_worker_died_is_drained_for_by_another(self, pool: Pool, bounds) -> None:
        await pool.enqueue("a", expires_in=600_000)
        await pool.claim(worker="w1")
        await suspect(pool)
        assert await name_of(pool, "w1") == ""
        pool.advance(ms=bounds.lease_ms)
        await pool.queue.reap(limit=9)
        assert await name_of(pool, "w2") == "a"
        assert await name_of(pool, "w2") == ""
        assert isinstance(await pool.look(worker="w2"), Wait)
