"""One test for each rule of the request protocol that the pool's scripts keep."""

from __future__ import annotations

import pytest

from billing.metering.keys import counted_from, ended_in_hour
from contracts.errors import DeadlinePassed, QueueFull
from contracts.jobs import Timings
from contracts.outcomes import JobState, Outcome
from contracts.tokens import TokenCounts
from fairqueue.messages import (
    Abort,
    AbortReason,
    CancelReply,
    Ended,
    Released,
    StepEntry,
    Wait,
    decode_mailbox,
    final_of,
)
from fairqueue.queue import LogGapError


class TestEnqueue:
    async def test_refuses_past_its_deadline_and_then_for_ever(self, pool) -> None:
        with pytest.raises(DeadlinePassed):
            await pool.enqueue("r1", deadline_in=-1)
        with pytest.raises(DeadlinePassed):
            await pool.enqueue("r1", deadline_in=10_000)
        assert await pool.state("r1") == "unknown"

    async def test_refuses_after_a_cancel_of_the_unknown_request(self, pool) -> None:
        reply = await pool.queue.cancel(request_id="r1", generation=None, reason="cancelled")
        assert reply == CancelReply.TOMBSTONED
        with pytest.raises(DeadlinePassed):
            await pool.enqueue("r1")
        assert isinstance(await pool.look(), Wait)

    async def test_refuses_after_the_settlers_look(self, pool) -> None:
        assert await pool.queue.look(request_id="r1") is False
        with pytest.raises(DeadlinePassed):
            await pool.enqueue("r1")

    async def test_refuses_a_deadline_further_ahead_than_tombstones_live(self, pool, bounds) -> None:
        with pytest.raises(DeadlinePassed):
            await pool.enqueue("r1", deadline_in=bounds.tombstone_ms + 1)

    async def test_says_full_again_when_its_reply_was_lost_although_there_is_room_now(self, pool) -> None:
        await pool.enqueue("r1", queued_max=1)
        with pytest.raises(QueueFull):
            await pool.enqueue("r2", queued_max=1)
        await pool.claim()
        with pytest.raises(QueueFull):
            await pool.enqueue("r2", queued_max=1)

    async def test_of_a_known_request_attaches_a_mailbox_and_raises_the_generation(self, pool) -> None:
        first = await pool.enqueue("r1")
        assert (first.already, first.generation, first.position) == (False, 1, 1)
        again = await pool.enqueue("r1", mailbox="w:mb:second", deadline_in=-1)
        assert (again.already, again.generation) == (True, 2)

    async def test_keeps_the_four_newest_mailboxes(self, pool) -> None:
        for name in "abcdef":
            await pool.enqueue("r1", mailbox=f"w:mb:{name}")
        boxes = await pool.redis.hget(pool.queue.keys.prefix + "job:r1", "mailboxes")
        assert boxes == b"w:mb:c\nw:mb:d\nw:mb:e\nw:mb:f"


class TestTombstone:
    async def test_lives_past_the_furthest_enqueue_deadline(self, pool, bounds) -> None:
        await pool.queue.look(request_id="r1")
        assert await pool.redis.pttl(pool.queue.keys.prefix + "tomb:r1") > bounds.tombstone_ms - 60_000


class TestClaim:
    async def test_with_the_same_nonce_gets_the_same_request(self, pool) -> None:
        await pool.enqueue("r1")
        await pool.enqueue("r2")
        first = await pool.claim(nonce="n")
        assert await pool.claim(nonce="n") == first

    async def test_with_a_nonce_whose_request_has_moved_on_gets_another(self, pool) -> None:
        await pool.enqueue("r1")
        await pool.enqueue("r2")
        first = await pool.claim(nonce="n")
        await pool.end(first)
        assert (await pool.claim(nonce="n")).ticket.request_id == "r2"

    async def test_makes_a_fence_that_no_other_attempt_has(self, pool) -> None:
        await pool.enqueue("r1")
        first = await pool.claim(nonce="n")
        await pool.queue.hand_back(worker_id="worker", request_id="r1", fence=first.fence)
        second = await pool.claim(nonce="n")
        assert (first.fence, second.fence) == ("1-n", "2-n")

    async def test_never_gives_a_cancelled_request(self, pool) -> None:
        await pool.enqueue("r1")
        reply = await pool.queue.cancel(request_id="r1", generation=None, reason="cancelled")
        assert reply == CancelReply.ENDED
        assert isinstance(await pool.look(), Wait)

    async def test_ends_an_expired_head_and_gives_the_next(self, pool) -> None:
        await pool.enqueue("old", expires_in=10)
        await pool.enqueue("new")
        pool.advance(ms=10)
        assert (await pool.claim()).ticket.request_id == "new"
        [record] = await pool.usage()
        assert (record.request_id, record.outcome, record.counts) == ("old", "expired", TokenCounts())

    async def test_whose_reply_was_lost_is_found_by_what_the_worker_holds(self, pool, bounds) -> None:
        await pool.enqueue("lost")
        await pool.claim()
        pool.advance(ms=bounds.holding_margin_ms)
        await pool.queue.step(worker_id="worker", entries=[], holding=[])
        assert await pool.state("lost") == "running"
        pool.advance(ms=1)
        await pool.queue.step(worker_id="worker", entries=[], holding=[])
        status = await pool.queue.status(request_id="lost")
        assert (status.state, status.lapses, status.engine_deaths) == (JobState.QUEUED, 0, 0)


class TestStep:
    async def test_ends_a_cancelled_request_that_its_worker_never_heard_of(self, pool, bounds) -> None:
        await pool.enqueue("r1")
        await pool.claim()
        await pool.queue.cancel(request_id="r1", generation=None, reason="cancelled")
        pool.advance(ms=bounds.holding_margin_ms + 1)
        await pool.queue.step(worker_id="worker", entries=[], holding=[])
        assert await pool.state("r1") == JobState.ENDED

    async def test_with_a_stale_fence_writes_nothing(self, pool, bounds) -> None:
        await pool.enqueue("r1")
        frozen = await pool.claim()
        pool.advance(ms=bounds.lease_ms)
        await pool.queue.reap(limit=10)
        reply = await pool.step(frozen, [b"late"])
        assert reply.stale == ["r1"]
        assert reply.aborts == [Abort(request_id="r1", reason=AbortReason.FENCE)]
        assert (await pool.queue.read_log(request_id="r1", after_seq=0, limit=9)).frames == []

    async def test_repeated_after_a_lost_reply_logs_each_frame_once(self, pool) -> None:
        await pool.enqueue("r1")
        claim = await pool.claim()
        await pool.step(claim, [b"a", b"b"])
        await pool.step(claim, [b"a", b"b"])
        await pool.step(claim, [b"b", b"c"], first_seq=2)
        assert (await pool.queue.read_log(request_id="r1", after_seq=0, limit=9)).frames == [b"a", b"b", b"c"]

    async def test_that_leaves_a_gap_is_aborted(self, pool) -> None:
        await pool.enqueue("r1")
        claim = await pool.claim()
        reply = await pool.step(claim, [b"c"], first_seq=3)
        assert reply.aborts == [Abort(request_id="r1", reason=AbortReason.GAP)]
        assert (await pool.queue.read_log(request_id="r1", after_seq=0, limit=9)).frames == []

    async def test_extends_the_lease_only_with_progress(self, pool, bounds) -> None:
        await pool.enqueue("hung")
        claim = await pool.claim()
        pool.advance(ms=bounds.lease_ms - 1)
        await pool.step(claim, progressed=True)
        pool.advance(ms=bounds.lease_ms - 1)
        assert (await pool.queue.reap(limit=10)).requeued == 0
        await pool.step(claim, progressed=False)
        pool.advance(ms=1)
        assert (await pool.queue.reap(limit=10)).requeued == 1

    async def test_does_not_take_a_repeat_for_progress(self, pool, bounds) -> None:
        await pool.enqueue("r1")
        claim = await pool.claim()
        await pool.step(claim, [b"a"])
        pool.advance(ms=bounds.lease_ms - 1)
        await pool.step(claim, [b"a"])
        pool.advance(ms=1)
        assert (await pool.queue.reap(limit=10)).ended == 1

    async def test_names_what_to_abort_until_it_ends(self, pool) -> None:
        await pool.enqueue("r1")
        claim = await pool.claim()
        await pool.queue.cancel(request_id="r1", generation=None, reason="revoked")
        for _ in range(2):
            reply = await pool.queue.step(worker_id="worker", entries=[], holding=["r1"])
            assert reply.aborts == [Abort(request_id="r1", reason=AbortReason.REVOKED)]
        await pool.end(claim, outcome=Outcome.CANCELLED)
        assert (await pool.queue.step(worker_id="worker", entries=[], holding=[])).aborts == []

    async def test_aborts_what_the_worker_only_thinks_it_has(self, pool) -> None:
        reply = await pool.queue.step(worker_id="worker", entries=[], holding=["never"])
        assert reply.aborts == [Abort(request_id="never", reason=AbortReason.FENCE)]

    async def test_publishes_one_message_for_all_entries_of_a_mailbox(self, pool) -> None:
        async with pool.redis.pubsub() as subscriber:
            await subscriber.subscribe("w:mb:gateway")
            await subscriber.get_message(timeout=5)
            claims = []
            for rid in ("r1", "r2"):
                await pool.enqueue(rid)
                claims.append(await pool.claim())
            entries = [
                StepEntry(
                    request_id=claim.ticket.request_id,
                    fence=claim.fence,
                    first_seq=1,
                    frames=[b'{"x":"\xc3\xa9"}', b"\x00\xff" * 200],
                    counts=TokenCounts(prompt=10, completion=2),
                    delivered_tokens=2,
                    progressed=True,
                )
                for claim in claims
            ]
            await pool.queue.step(worker_id="worker", entries=entries, holding=["r1", "r2"])
            message = await subscriber.get_message(ignore_subscribe_messages=True, timeout=5)
        assert decode_mailbox(message["data"]) == [
            Released(request_id=rid, epoch=claim.fence, first_seq=1, frames=entries[0].frames)
            for rid, claim in zip(("r1", "r2"), claims, strict=True)
        ]


class TestEnd:
    async def test_twice_under_the_same_fence_writes_one_usage_record(self, pool) -> None:
        await pool.enqueue("r1")
        claim = await pool.claim()
        assert await pool.end(claim) is True
        assert await pool.end(claim) is True
        assert len(await pool.usage()) == 1

    async def test_is_counted_once_beside_its_record_whoever_made_it(self, pool) -> None:
        await pool.enqueue("r1", prompt_tokens=10)
        await pool.enqueue("r2", prompt_tokens=10)
        claim = await pool.claim()
        for _ in range(2):
            await pool.end(claim, completion=5, outcome=Outcome.FAILED)
        await pool.queue.cancel(request_id="r2", generation=None, reason="cancelled")
        records = await pool.usage()
        [hour] = {record.billed_at_ms // 3_600_000 for record in records}
        counted = await pool.redis.hgetall(ended_in_hour("pool", hour))
        tenant = records[0].tenant_id
        tokens = sum(record.counts.prompt + record.counts.completion for record in records)
        assert counted == {tenant.encode(): b"2", f"{tenant}:tokens".encode(): str(tokens).encode()}
        since = await pool.redis.hget(*counted_from("pool"))
        assert int(since) == min(record.billed_at_ms for record in records)

    async def test_under_a_stale_fence_does_nothing(self, pool) -> None:
        await pool.enqueue("r1")
        claim = await pool.claim()
        await pool.queue.hand_back(worker_id="worker", request_id="r1", fence=claim.fence)
        assert await pool.end(claim) is False
        assert await pool.usage() == []

    async def test_names_the_field_that_the_engine_refused(self, pool) -> None:
        await pool.enqueue("r1")
        claim = await pool.claim()
        end = {
            "worker_id": "worker", "request_id": "r1", "fence": claim.fence, "last_seq": 0, "outcome": Outcome.FAILED,
            "finish_reason": "", "error_code": "invalid_value", "counts": TokenCounts(), "delivered_tokens": 0,
            "timings": Timings(), "error_param": "seed",
        }  # fmt: skip
        assert await pool.queue.end(**end) is True
        [record] = await pool.usage()
        assert record == (await pool.queue.unsettled(older_than_ms=0, limit=9))[0]
        assert (record.error_param, final_of(record, cost_nano=0).error_param) == ("seed", "seed")

    async def test_that_is_ok_must_name_the_logs_last_frame(self, pool) -> None:
        await pool.enqueue("r1")
        claim = await pool.claim()
        await pool.step(claim, [b"a"])
        with pytest.raises(LogGapError):
            await pool.end(claim, last_seq=2)
        assert await pool.end(claim, last_seq=2, outcome=Outcome.FAILED) is True

    async def test_carries_what_the_bill_needs_and_no_prompt(self, pool) -> None:
        await pool.enqueue("r1", prompt_tokens=10)
        claim = await pool.claim()
        await pool.step(claim, [b"a", b"b"])
        await pool.end(claim, last_seq=2)
        [record] = await pool.usage()
        assert record == (await pool.queue.unsettled(older_than_ms=0, limit=9))[0]
        assert record.counts == TokenCounts(prompt=10, completion=2)
        assert (record.request_id, record.attempt, record.worker_id, record.outcome) == ("r1", 1, "worker", "ok")
        assert (record.billed_at_ms, record.timings.total_us) == (pool.now_ms, 5)
        [(_, fields)] = await pool.redis.xrange(pool.queue.keys.usage)
        assert not any(b"secret prompt" in value for value in fields.values())


class TestEveryEnd:
    """By worker, cancel, reaper, dead letter or expiry: one usage record, and a place on the unsettled list."""

    async def by_worker(self, pool) -> None:
        await pool.end(await pool.claim())

    async def by_cancel(self, pool) -> None:
        await pool.queue.cancel(request_id="r1", generation=None, reason="cancelled")

    async def by_reaper(self, pool) -> None:
        await pool.claim()
        await pool.queue.cancel(request_id="r1", generation=None, reason="cancelled")
        pool.advance(ms=5_000)
        await pool.queue.reap(limit=10)

    async def by_dead_letter(self, pool) -> None:
        for _ in range(3):
            claim = await pool.claim()
            await pool.queue.engine_died(worker_id="worker", fences={"r1": claim.fence})

    async def by_expiry(self, pool) -> None:
        pool.advance(ms=60_000)
        await pool.queue.reap(limit=10)

    @pytest.mark.parametrize(
        ("way", "outcome"),
        [
            ("by_worker", "ok"),
            ("by_cancel", "cancelled"),
            ("by_reaper", "cancelled"),
            ("by_dead_letter", "failed"),
            ("by_expiry", "expired"),
        ],
    )
    async def test_is_swept_until_it_is_acked(self, pool, way: str, outcome: str) -> None:
        await pool.enqueue("r1")
        await getattr(self, way)(pool)
        [record] = await pool.queue.unsettled(older_than_ms=0, limit=10)
        assert (record.request_id, record.outcome) == ("r1", outcome)
        assert await pool.usage() == [record]
        assert await pool.ack(record) is True
        assert await pool.queue.unsettled(older_than_ms=0, limit=10) == []
        assert await pool.ack(record) is False

    async def test_by_the_reaper_bills_what_the_log_holds(self, pool, bounds) -> None:
        await pool.enqueue("r1")
        claim = await pool.claim()
        entry = StepEntry(
            request_id="r1",
            fence=claim.fence,
            first_seq=1,
            frames=[b"a"],
            counts=TokenCounts(prompt=10, completion=5, reasoning=4),
            delivered_tokens=3,
            progressed=True,
        )
        await pool.queue.step(worker_id="worker", entries=[entry], holding=["r1"])
        pool.advance(ms=bounds.lease_ms)
        await pool.queue.reap(limit=10)
        [record] = await pool.usage()
        assert record.counts == TokenCounts(prompt=10, completion=3, reasoning=3)
        assert (record.delivered_tokens, record.outcome, record.error_code) == (3, "failed", "worker_lost")

    async def test_by_the_reaper_stands_against_the_workers_own_of_the_same_fence(self, pool, bounds) -> None:
        """Else the worker settles, and tells the client, by counts that no record holds."""
        await pool.enqueue("r1")
        claim = await pool.claim()
        await pool.step(claim, [b"a"], completion=1)
        pool.advance(ms=bounds.lease_ms)
        await pool.queue.reap(limit=10)
        assert await pool.end(claim, last_seq=1, completion=5) is False
        [record] = await pool.usage()
        assert record.outcome == "failed"

    async def test_by_a_worker_is_the_same_when_it_is_said_again(self, pool) -> None:
        await pool.enqueue("r1")
        claim = await pool.claim()
        await pool.step(claim, [b"a"], completion=1)
        assert [await pool.end(claim, last_seq=1, completion=1) for _ in range(2)] == [True, True]
        assert len(await pool.usage()) == 1

    async def test_with_an_empty_log_and_no_worker_bills_nothing(self, pool, bounds) -> None:
        await pool.enqueue("r1")
        claim = await pool.claim()
        await pool.step(claim, [], completion=4)
        await pool.queue.cancel(request_id="r1", generation=None, reason="cancelled")
        pool.advance(ms=bounds.lease_ms)
        await pool.queue.reap(limit=10)
        [record] = await pool.usage()
        assert (record.counts, record.delivered_tokens) == (TokenCounts(), 0)


class TestAck:
    async def test_publishes_the_final_frame_whoever_settles(self, pool) -> None:
        async with pool.redis.pubsub() as subscriber:
            await subscriber.subscribe("w:mb:gateway")
            await subscriber.get_message(timeout=5)
            await pool.enqueue("r1")
            await pool.queue.cancel(request_id="r1", generation=None, reason="cancelled")
            [record] = await pool.queue.unsettled(older_than_ms=0, limit=10)
            await pool.ack(record)
            message = await subscriber.get_message(ignore_subscribe_messages=True, timeout=5)
        final = final_of(record, cost_nano=7)
        assert decode_mailbox(message["data"]) == [Ended(request_id="r1", epoch="", last_seq=0, final=final)]
        assert (final.status, final.error_code) == (499, "request_cancelled")

    @pytest.mark.parametrize("running", [False, True], ids=["queued", "running"])
    async def test_names_the_revocation_that_cancelled_it(self, pool, bounds, running: bool) -> None:
        await pool.enqueue("r1")
        if running:  # by a worker that dies before it ends it
            await pool.claim()
        await pool.queue.cancel(request_id="r1", generation=None, reason="revoked")
        pool.advance(ms=bounds.lease_ms)
        await pool.queue.reap(limit=10)
        [record] = await pool.queue.unsettled(older_than_ms=0, limit=10)
        assert (record.outcome, record.error_code) == ("cancelled", "key_revoked")

    async def test_leaves_log_and_request_for_their_time(self, pool, bounds) -> None:
        await pool.enqueue("r1")
        claim = await pool.claim()
        await pool.step(claim, [b"a", b"b"])
        await pool.end(claim, last_seq=2)
        prefix = pool.queue.keys.prefix
        assert await pool.redis.pttl(prefix + "out:r1") == -1
        [record] = await pool.usage()
        await pool.ack(record)
        assert 0 < await pool.redis.pttl(prefix + "out:r1") <= bounds.log_ttl_ms
        assert await pool.redis.pttl(prefix + "job:r1") > bounds.log_ttl_ms
        log = await pool.queue.read_log(request_id="r1", after_seq=1, limit=10)
        assert (log.frames, log.first_seq, log.epoch, log.state) == ([b"b"], 2, claim.fence, JobState.SETTLED)
        assert log.final == final_of(record, cost_nano=7)

    async def test_keeps_the_request_past_its_enqueue_deadline(self, pool, bounds) -> None:
        await pool.enqueue("r1", deadline_in=bounds.tombstone_ms)
        await pool.end(await pool.claim())
        [record] = await pool.usage()
        await pool.ack(record)
        assert await pool.redis.pttl(pool.queue.keys.prefix + "job:r1") > bounds.tombstone_ms + 60_000
        assert (await pool.enqueue("r1")).already is True
        assert isinstance(await pool.look(), Wait)

    async def test_drops_the_prompt(self, pool) -> None:
        await pool.enqueue("r1")
        await pool.end(await pool.claim())
        [record] = await pool.usage()
        await pool.ack(record)
        fields = await pool.redis.hgetall(pool.queue.keys.prefix + "job:r1")
        assert not any(b"secret prompt" in value for value in fields.values())

    async def test_does_nothing_before_the_end(self, pool) -> None:
        await pool.enqueue("r1")
        await pool.enqueue("r2")
        await pool.end(await pool.claim())
        [record] = await pool.usage()
        assert await pool.queue.ack(request_id="r2", final=final_of(record, cost_nano=0)) is False
        assert await pool.state("r2") == "queued"
