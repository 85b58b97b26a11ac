"""A request whose released frames all came with their token ids goes on at another worker; no other does."""

from __future__ import annotations

from contracts.jobs import Claim
from contracts.outcomes import Outcome
from contracts.tokens import TokenCounts
from fairqueue.messages import CancelReply, StepEntry, pack_ids
from tests.functional.fairqueue.conftest import Pool

REPLAYABLE = [[7, 8], [], [70_000]]
FRAMES = [b"a", b"b", b"c"]


async def lapse(pool: Pool, *, ms: int = 6_000) -> None:
    pool.advance(ms=ms)
    await pool.queue.reap(limit=9)


async def begun(pool: Pool, **asked: int) -> Claim:
    """A request that has released three frames of three tokens, and lost its worker."""
    await pool.enqueue("r1", **asked)
    claim = await pool.claim()
    await pool.step(claim, FRAMES, cached=4, ids=REPLAYABLE)
    await lapse(pool)
    return claim


class TestARequestWithItsIds:
    async def test_is_claimed_again_with_all_that_its_next_worker_needs(self, pool: Pool) -> None:
        first = await begun(pool)
        assert await pool.state("r1") == "queued"
        claim = await pool.claim(worker="other")
        assert (claim.attempt, claim.log_length) == (2, 3)
        assert claim.counts == TokenCounts(prompt=10, cached=4, completion=3)
        assert await pool.queue.read_ids(request_id="r1", fence=claim.fence) == [7, 8, 70_000]
        assert await pool.queue.read_ids(request_id="r1", fence=first.fence) is None

    async def test_gets_one_usage_record_for_all_that_was_released(self, pool: Pool) -> None:
        first = await begun(pool)
        claim = await pool.claim(worker="other")
        await pool.step(claim, [b"d"], worker="other", first_seq=4, ids=[[9]])
        assert await pool.queue.read_ids(request_id="r1", fence=claim.fence) == [7, 8, 70_000, 9]
        assert await pool.end(claim, last_seq=4)
        [record] = await pool.usage()
        assert (record.outcome, record.attempt, record.counts.completion) == ("ok", 2, 4)
        log = await pool.queue.read_log(request_id="r1", after_seq=0, limit=9)
        assert log is not None
        assert log.frames == [*FRAMES, b"d"]
        assert (log.epoch, log.writers) == (claim.fence, {first.fence: 3})
        assert await pool.redis.exists(pool.queue.keys.prefix + "ids:r1") == 0

    async def test_goes_on_after_an_engine_death_and_a_drain(self, pool: Pool) -> None:
        await pool.enqueue("r1")
        claim = await pool.claim()
        await pool.step(claim, [b"a"], ids=[[1]])
        assert (await pool.queue.engine_died(worker_id="worker", fences={"r1": claim.fence})).requeued == 1
        claim = await pool.claim()
        await pool.step(claim, [b"b"], first_seq=2, ids=[[2]])
        assert await pool.queue.hand_back(worker_id="worker", request_id="r1", fence=claim.fence)
        claim = await pool.claim()
        assert (claim.attempt, claim.log_length, claim.engine_deaths) == (3, 2, 1)

    async def test_is_dead_lettered_at_the_third_death_billed_for_what_was_released(self, pool: Pool) -> None:
        await pool.enqueue("r1")
        for number in (1, 2, 3):
            claim = await pool.claim()
            await pool.step(claim, [b"f"], first_seq=number, ids=[[number]])
            report = await pool.queue.engine_died(worker_id="worker", fences={"r1": claim.fence})
        assert report.dead_lettered == 1
        [record] = await pool.usage()
        assert (record.error_code, record.counts.completion) == ("dead_letter", 3)

    async def test_pays_for_each_token_once(self, pool: Pool) -> None:
        await pool.enqueue("alone")
        claim = await pool.claim()
        await pool.step(claim, [b"f"] * 5)
        await pool.end(claim, last_seq=5)
        await pool.enqueue("r1", tenant_id="twice")
        claim = await pool.claim()
        await pool.step(claim, FRAMES, ids=REPLAYABLE)
        await lapse(pool)
        claim = await pool.claim()
        await pool.step(claim, [b"f"] * 2, first_seq=4, ids=[[1], [2]])
        await pool.end(claim, last_seq=5)
        jobs = [await pool.redis.hget(pool.queue.keys.prefix + "job:" + rid, "paid") for rid in ("alone", "r1")]
        assert jobs[0] == jobs[1]

    async def test_is_billed_for_its_log_when_its_client_leaves_while_it_waits(self, pool: Pool) -> None:
        await begun(pool)
        reply = await pool.queue.cancel(request_id="r1", generation=None, reason="cancelled")
        assert reply is CancelReply.ENDED
        [record] = await pool.usage()
        assert record.counts == TokenCounts(prompt=10, cached=4, completion=3)

    async def test_is_billed_for_no_token_that_would_be_generated_again(self, pool: Pool) -> None:
        """A token that ended inside a character was counted, and is not among the ids yet."""
        await pool.enqueue("r1")
        claim = await pool.claim()
        await pool.step(claim, FRAMES, completion=5, ids=REPLAYABLE)
        await lapse(pool)
        claim = await pool.claim()
        assert claim.counts.completion == 3
        await pool.end(claim, last_seq=3, outcome=Outcome.CANCELLED, completion=3)

    async def test_may_wait_as_long_as_at_first(self, pool: Pool) -> None:
        await pool.enqueue("r1", expires_in=7_000)
        claim = await pool.claim()
        for seq, frame in enumerate(FRAMES, start=1):
            await pool.step(claim, [frame], first_seq=seq, ids=[[seq]])
            pool.advance(ms=4_000)
        await lapse(pool)
        assert await pool.state("r1") == "queued"
        await lapse(pool, ms=6_999)
        assert await pool.state("r1") == "queued"
        await lapse(pool, ms=1)
        [record] = await pool.usage()
        assert (record.outcome, record.counts.completion) == ("expired", 3)


class TestARequestThatLacksAnId:
    async def test_ends(self, pool: Pool) -> None:
        await pool.enqueue("r1")
        claim = await pool.claim()
        await pool.step(claim, [b"a"], ids=[[1]])
        await pool.step(claim, [b"b"], first_seq=2)
        await pool.step(claim, [b"c"], first_seq=3, ids=[[3]])
        await lapse(pool)
        [record] = await pool.usage()
        assert (record.error_code, record.counts.completion) == ("worker_lost", 3)


class TestIds:
    async def test_of_a_repeated_frame_are_kept_once(self, pool: Pool) -> None:
        await pool.enqueue("r1")
        claim = await pool.claim()
        for _ in range(2):
            await pool.step(claim, [b"a", b"b"], ids=[[1], [2]])
        await pool.step(claim, [b"b", b"c"], first_seq=2, ids=[[2], [3]])
        assert await pool.queue.read_ids(request_id="r1", fence=claim.fence) == [1, 2, 3]

    async def test_are_not_kept_of_a_stale_attempt(self, pool: Pool) -> None:
        frozen = await begun(pool)
        claim = await pool.claim(worker="other")
        entry = StepEntry(
            request_id="r1", fence=frozen.fence, first_seq=4, frames=[b"x"], delivered_tokens=4, progressed=True,
            counts=TokenCounts(prompt=10, completion=4), ids=[pack_ids([666])],
        )  # fmt: skip
        await pool.queue.step(worker_id="worker", entries=[entry], holding=["r1"])
        assert await pool.queue.read_ids(request_id="r1", fence=claim.fence) == [7, 8, 70_000]
