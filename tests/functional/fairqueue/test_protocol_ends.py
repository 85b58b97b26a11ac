"""Ends that no worker makes, and rules that hold for every script: the second half of the protocol's rules."""

from __future__ import annotations

import asyncio

from fairqueue.messages import (
    CancelReply,
    Wait,
)


class TestCancel:
    async def test_by_a_lost_connection_spares_a_later_attach(self, pool) -> None:
        first = await pool.enqueue("r1")
        second = await pool.enqueue("r1", mailbox="w:mb:second")
        reply = await pool.queue.cancel(request_id="r1", generation=first.generation, reason="cancelled")
        assert reply == CancelReply.STALE
        assert await pool.state("r1") == "queued"
        reply = await pool.queue.cancel(request_id="r1", generation=second.generation, reason="cancelled")
        assert reply == CancelReply.ENDED

    async def test_gives_the_same_answer_again(self, pool) -> None:
        await pool.enqueue("waits")
        await pool.enqueue("runs", tenant_id="other")
        await pool.claim()
        for expected in (CancelReply.ENDED, CancelReply.FLAGGED, CancelReply.TOMBSTONED):
            rid = {"ended": await self.one_in(pool, "queued"), "flagged": "", "tombstoned": "none"}[expected.value]
            rid = rid or await self.one_in(pool, "running")
            for _ in range(2):
                assert await pool.queue.cancel(request_id=rid, generation=None, reason="cancelled") == expected

    async def one_in(self, pool, state: str) -> str:
        for rid in ("waits", "runs"):
            if await pool.state(rid) == state:
                return rid
        return "none"

    async def test_of_a_finished_request_changes_nothing(self, pool) -> None:
        await pool.enqueue("r1")
        await pool.end(await pool.claim())
        reply = await pool.queue.cancel(request_id="r1", generation=None, reason="cancelled")
        assert reply == CancelReply.ALREADY_ENDED
        assert len(await pool.usage()) == 1


class TestReaper:
    async def test_ends_a_lapsed_request_with_a_cancel_flag_and_never_requeues_it(self, pool, bounds) -> None:
        await pool.enqueue("r1")
        await pool.claim()
        await pool.queue.cancel(request_id="r1", generation=None, reason="cancelled")
        pool.advance(ms=bounds.lease_ms)
        report = await pool.queue.reap(limit=10)
        assert (report.requeued, report.ended) == (0, 1)
        assert isinstance(await pool.look(), Wait)

    async def test_requeues_at_the_old_place(self, pool, bounds) -> None:
        for rid in ("r1", "r2", "r3"):
            await pool.enqueue(rid)
        await pool.claim()
        pool.advance(ms=bounds.lease_ms)
        assert (await pool.queue.reap(limit=10)).requeued == 1
        claims = [await pool.claim() for _ in range(3)]
        assert [claim.ticket.request_id for claim in claims] == ["r1", "r2", "r3"]
        assert [claim.attempt for claim in claims] == [2, 1, 1]

    async def test_ends_a_request_whose_frames_were_released(self, pool, bounds) -> None:
        await pool.enqueue("r1")
        claim = await pool.claim()
        await pool.step(claim, [b"a"])
        pool.advance(ms=bounds.lease_ms)
        report = await pool.queue.reap(limit=10)
        assert (report.requeued, report.ended) == (0, 1)
        [record] = await pool.usage()
        assert (record.outcome, record.error_code, record.counts.completion) == ("failed", "worker_lost", 1)

    async def test_dead_letters_after_the_stated_number_of_lapses(self, pool, bounds) -> None:
        await pool.enqueue("r1", expires_in=3_600_000)
        for lapse in range(1, bounds.lapses_max + 1):
            await pool.claim()
            pool.advance(ms=bounds.lease_ms)
            report = await pool.queue.reap(limit=10)
            assert report.dead_lettered == (lapse == bounds.lapses_max)
        [record] = await pool.usage()
        assert (record.outcome, record.error_code) == ("failed", "dead_letter")


class TestDeadLetter:
    async def test_counts_engine_deaths_only(self, pool, bounds) -> None:
        await pool.enqueue("r1", expires_in=3_600_000)
        for _ in range(3):
            claim = await pool.claim()
            assert await pool.queue.hand_back(worker_id="worker", request_id="r1", fence=claim.fence)
        await pool.claim()
        pool.advance(ms=bounds.lease_ms)
        await pool.queue.reap(limit=10)
        claim = await pool.claim()
        report = await pool.queue.engine_died(worker_id="worker", fences={"r1": claim.fence})
        assert (report.requeued, report.dead_lettered) == (1, 0)
        for deaths in (1, 2):
            claim = await pool.claim()
            assert claim.engine_deaths == deaths
            report = await pool.queue.engine_died(worker_id="worker", fences={"r1": claim.fence})
            assert (report.requeued, report.dead_lettered) == (2 - deaths, deaths - 1)

    async def test_counts_a_repeated_report_once(self, pool) -> None:
        await pool.enqueue("r1")
        claim = await pool.claim()
        for _ in range(3):
            await pool.queue.engine_died(worker_id="worker", fences={"r1": claim.fence})
        assert (await pool.queue.status(request_id="r1")).engine_deaths == 1

    async def test_keeps_the_evidence_and_the_ticket(self, pool) -> None:
        await pool.enqueue("r1")
        for _ in range(3):
            claim = await pool.claim(worker="w7")
            await pool.queue.engine_died(worker_id="w7", fences={"r1": claim.fence})
        [(_, letter)] = await pool.redis.xrange(pool.queue.keys.dead)
        assert (
            letter[b"losses"]
            == f"death w7 1 {pool.now_ms}\ndeath w7 2 {pool.now_ms}\ndeath w7 3 {pool.now_ms}\n".encode()
        )
        assert b"secret prompt" in letter[b"body"]
        assert (await pool.queue.depths()).dead_letters == 1


class TestAWorkerThatStartsAgain:
    async def test_gives_back_what_its_last_life_held(self, pool) -> None:
        await pool.enqueue("r1")
        await pool.claim()
        assert (await pool.queue.register(worker_id="worker")).requeued == 1
        assert (await pool.claim()).attempt == 2


class TestScripts:
    async def test_are_loaded_again_after_a_flush(self, pool) -> None:
        await pool.enqueue("r1")
        await pool.redis.script_flush()
        assert (await pool.claim()).ticket.request_id == "r1"

    async def test_take_the_time_of_redis_when_none_is_given(self, pool) -> None:
        pool.queue._now_us = None
        seconds, micros = await pool.redis.time()
        pool.now[0] = seconds * 1_000_000 + micros
        await pool.enqueue("r1")
        async with asyncio.timeout(5):
            claim = await pool.claim()
        assert 0 <= claim.queue_us < 5_000_000
