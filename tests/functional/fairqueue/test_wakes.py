"""Idle workers: each eligible request wakes one, none waits beside an idle worker, nobody polls."""

from __future__ import annotations

import asyncio

from fairqueue.messages import Claim, Wait


class TestAnIdleWorker:
    async def test_is_woken_by_the_next_enqueue(self, pool) -> None:
        assert await pool.look(worker="idle") == Wait(until_ms=None)
        assert await pool.woken("idle") is False
        await pool.enqueue("r1")
        assert await pool.queue.wait_wake(worker_id="idle", timeout_s=5) is True
        assert (await pool.claim(worker="idle")).ticket.request_id == "r1"

    async def test_wakes_from_a_blocking_pop(self, pool) -> None:
        await pool.look(worker="idle")
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            waiter = group.create_task(pool.queue.wait_wake(worker_id="idle", timeout_s=8))
            group.create_task(pool.enqueue("r1"))
        assert waiter.result() is True

    async def test_sleeps_on_when_another_is_woken(self, pool) -> None:
        await pool.look(worker="first")
        await pool.look(worker="second")
        await pool.enqueue("r1")
        assert [await pool.woken("first"), await pool.woken("second")] == [True, False]

    async def test_is_told_that_its_time_is_over(self, pool) -> None:
        assert await pool.queue.wait_wake(worker_id="idle", timeout_s=0.01) is False

    async def test_is_not_woken_while_it_is_busy(self, pool) -> None:
        await pool.look(worker="busy")
        await pool.enqueue("r1")
        await pool.claim(worker="busy")
        await pool.enqueue("r2")
        assert await pool.woken("busy") is False


class TestAWake:
    async def test_that_its_worker_cannot_use_is_passed_on(self, pool) -> None:
        await pool.enqueue("runs")
        await pool.claim(worker="a-small")
        await pool.look(worker="a-small")
        await pool.look(worker="b-large")
        await pool.enqueue("big", prompt_tokens=5_000)
        assert await pool.woken("a-small") is True
        assert isinstance(await pool.look(worker="a-small", free_kv=100), Wait)
        assert await pool.woken("b-large") is True
        assert isinstance(await pool.look(worker="b-large"), Claim)

    async def test_visits_each_worker_once(self, pool) -> None:
        for name in ("a", "b"):
            await pool.enqueue(f"runs-{name}")
            await pool.claim(worker=name)
        for name in ("a", "b"):
            await pool.look(worker=name)
        await pool.enqueue("big", prompt_tokens=5_000)
        await pool.look(worker="a", free_kv=100)
        await pool.look(worker="b", free_kv=100)
        assert [await pool.woken("a"), await pool.woken("b")] == [False, False]
        assert (await pool.queue.depths()).idle_workers == 2

    async def test_of_a_dead_worker_is_passed_on_by_the_reaper(self, pool, bounds) -> None:
        await pool.look(worker="dead")
        await pool.look(worker="live")
        await pool.enqueue("r1")
        pool.advance(ms=bounds.wake_margin_ms)
        assert (await pool.queue.reap(limit=10)).wakes_passed == 1
        assert [await pool.woken("dead"), await pool.woken("live")] == [False, True]

    async def test_of_a_worker_that_leaves_is_passed_on(self, pool) -> None:
        await pool.look(worker="leaving")
        await pool.look(worker="live")
        await pool.enqueue("r1")
        await pool.queue.leave(worker_id="leaving")
        assert await pool.woken("live") is True

    async def test_comes_for_a_request_that_was_handed_back(self, pool) -> None:
        await pool.enqueue("r1")
        claim = await pool.claim()
        await pool.look(worker="idle")
        await pool.queue.hand_back(worker_id="worker", request_id="r1", fence=claim.fence)
        assert await pool.woken("idle") is True

    async def test_comes_when_the_head_that_blocked_is_gone(self, pool) -> None:
        await pool.enqueue("runs")
        await pool.claim(worker="small")
        await pool.enqueue("big", prompt_tokens=5_000)
        await pool.enqueue("next", prompt_tokens=10)
        assert isinstance(await pool.look(worker="small", free_kv=100), Wait)
        await pool.queue.cancel(request_id="big", generation=None, reason="cancelled")
        assert await pool.woken("small") is True
        assert (await pool.claim(worker="small", free_kv=100)).ticket.request_id == "next"

    async def test_goes_on_to_the_next_when_the_woken_one_fills_up(self, pool) -> None:
        for name in ("a", "b"):
            await pool.enqueue(f"runs-{name}")
            await pool.claim(worker=name)
        await pool.enqueue("big", prompt_tokens=5_000)
        await pool.enqueue("next1")
        await pool.enqueue("next2")
        for name in ("a", "b"):
            await pool.look(worker=name, free_kv=100)
        await pool.queue.cancel(request_id="big", generation=None, reason="cancelled")
        assert [await pool.woken("a"), await pool.woken("b")] == [True, False]
        await pool.claim(worker="a", free_kv=100, free_slots=1)
        assert await pool.woken("b") is True


class TestAWaitingAnswer:
    async def test_names_the_time_when_the_queue_changes_by_itself(self, pool) -> None:
        await pool.enqueue("runs")
        await pool.claim(worker="small")
        await pool.enqueue("big", prompt_tokens=5_000, expires_in=30_000)
        assert await pool.look(worker="small", free_kv=100) == Wait(until_ms=pool.now_ms + 30_000)
