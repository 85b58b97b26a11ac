"""Each rule of the protocol that the pool's scripts keep: it holds, and without its line it does not.

A scenario says whether the rule holds. It runs on the scripts as they are and on a script that lacks the rule, so that
a test which would pass without the rule cannot stand.
"""

from __future__ import annotations

from typing import Any

import pytest

from contracts.errors import DeadlinePassed
from contracts.tokens import TokenCounts
from fairqueue.messages import Ended, StepEntry, Wait, decode_mailbox, final_of
from tests.functional.fairqueue.conftest import BOX, Pool
from tests.functional.fairqueue.rules import Rule


async def late_enqueue_is_refused(pool: Pool) -> bool:
    return await _refused(pool, deadline_in=-1)


async def cancel_of_the_unknown_refuses_its_enqueue(pool: Pool) -> bool:
    await pool.queue.cancel(request_id="r1", generation=None, reason="cancelled")
    return await _refused(pool)


async def look_refuses_a_later_enqueue(pool: Pool) -> bool:
    await pool.queue.look(request_id="r1")
    return await _refused(pool)


async def _refused(pool: Pool, **options: Any) -> bool:
    try:
        await pool.enqueue("r1", **options)
    except DeadlinePassed:
        return True
    return False


async def end_by_cancel_is_to_be_settled(pool: Pool) -> bool:
    await pool.enqueue("r1")
    await pool.queue.cancel(request_id="r1", generation=None, reason="cancelled")
    return [one.request_id for one in await pool.queue.unsettled(older_than_ms=0, limit=9)] == ["r1"]


async def lapse_bills_what_the_log_holds(pool: Pool) -> bool:
    await pool.enqueue("r1")
    claim = await pool.claim()
    counts = TokenCounts(prompt=claim.ticket.prompt_tokens, completion=9)
    entry = StepEntry(
        request_id="r1", fence=claim.fence, first_seq=1, frames=[b"f"], counts=counts, delivered_tokens=3,
        progressed=True,
    )  # fmt: skip
    await pool.queue.step(worker_id="worker", entries=[entry], holding=["r1"])
    await _lapse(pool)
    [record] = await pool.usage()
    return record.counts.completion == 3


async def old_connection_cancels_nothing(pool: Pool) -> bool:
    await pool.enqueue("r1")
    await pool.enqueue("r1", mailbox="w:mb:other")
    await pool.queue.cancel(request_id="r1", generation=1, reason="cancelled")
    return await pool.state("r1") == "queued"


async def cancelled_request_is_never_requeued(pool: Pool) -> bool:
    await pool.enqueue("r1")
    await pool.claim()
    await pool.queue.cancel(request_id="r1", generation=None, reason="cancelled")
    await _lapse(pool)
    return await pool.state("r1") == "ended"


async def repeated_step_is_logged_once(pool: Pool) -> bool:
    await pool.enqueue("r1")
    claim = await pool.claim()
    for _ in range(2):
        await pool.step(claim, [b"one"])
    log = await pool.queue.read_log(request_id="r1", after_seq=0, limit=9)
    return log is not None and log.frames == [b"one"]


async def repeated_claim_gets_the_same(pool: Pool) -> bool:
    await pool.enqueue("r1")
    await pool.enqueue("r2")
    claims = [await pool.claim(nonce="same") for _ in range(2)]
    return claims[0] == claims[1]


async def claim_that_the_worker_does_not_name_goes_back(pool: Pool) -> bool:
    await pool.enqueue("r1")
    await pool.claim()
    pool.advance(ms=3_000)
    await pool.queue.step(worker_id="worker", entries=[], holding=[])
    return await pool.state("r1") == "queued"


async def hung_engine_loses_its_lease(pool: Pool) -> bool:
    await pool.enqueue("r1")
    claim = await pool.claim()
    pool.advance(ms=3_000)
    await pool.step(claim, progressed=False)
    pool.advance(ms=3_000)
    await pool.queue.reap(limit=9)
    return await pool.state("r1") == "queued"


async def lapses_are_no_deaths(pool: Pool) -> bool:
    await pool.enqueue("r1")
    for _ in range(3):
        await pool.claim()
        await _lapse(pool)
    return await pool.state("r1") == "queued"


async def stale_fence_writes_nothing(pool: Pool) -> bool:
    await pool.enqueue("r1")
    claim = await pool.claim()
    await _lapse(pool)
    await pool.claim(worker="other")
    reply = await pool.step(claim, [b"stale"])
    log = await pool.queue.read_log(request_id="r1", after_seq=0, limit=9)
    return reply.stale == ["r1"] and log is not None and log.frames == []


async def log_names_the_fence_that_wrote_it(pool: Pool) -> bool:
    await pool.enqueue("r1")
    claim = await pool.claim()
    await pool.step(claim, [b"one"])
    log = await pool.queue.read_log(request_id="r1", after_seq=0, limit=9)
    return log is not None and log.epoch == claim.fence


async def log_names_who_wrote_it_before_and_up_to_where(pool: Pool) -> bool:
    await pool.enqueue("r1")
    first = await pool.claim()
    await pool.step(first, [b"one"], ids=[[1]])
    await _lapse(pool)
    second = await pool.claim()
    await pool.step(second, [b"two"], first_seq=2, ids=[[2]])
    await _lapse(pool)
    await pool.claim()
    log = await pool.queue.read_log(request_id="r1", after_seq=0, limit=9)
    return log is not None and log.writers == {first.fence: 1, second.fence: 2}


async def ack_sends_the_final_frame(pool: Pool) -> bool:
    await pool.enqueue("r1")
    await pool.end(await pool.claim())
    [record] = await pool.usage()
    async with pool.redis.pubsub() as box:
        await box.subscribe(BOX)
        await box.get_message(timeout=5)
        await pool.queue.ack(request_id="r1", final=final_of(record, cost_nano=0))
        # By the node that ran the ack: of a cluster's messages only those of one node keep their order.
        await pool.redis.eval("redis.call('PUBLISH', ARGV[1], 'over')", 1, pool.queue.keys.prefix + "job:r1", BOX)
        said = await box.get_message(timeout=5)
    return said["data"] != b"over" and isinstance(decode_mailbox(said["data"])[0], Ended)


async def old_dead_letter_is_forgotten(pool: Pool) -> bool:
    now_ms, day_ms = (await pool.redis.time())[0] * 1_000, 86_400_000
    for days in (8, 6):
        await pool.redis.xadd(pool.queue.keys.dead, {"body": b"secret prompt"}, id=f"{now_ms - days * day_ms}-1")
    await pool.queue.reap(limit=9)
    return [kept for kept, _ in await pool.redis.xrange(pool.queue.keys.dead)] == [b"%d-1" % (now_ms - 6 * day_ms)]


async def request_outlives_its_enqueue_deadline(pool: Pool) -> bool:
    await pool.enqueue("r1", deadline_in=3_500_000, expires_in=3_600_000)
    await pool.end(await pool.claim())
    [record] = await pool.usage()
    await pool.ack(record)
    return int(await pool.redis.pttl(pool.queue.keys.prefix + "job:r1")) > 3_600_000


async def worker_that_saw_nothing_is_woken(pool: Pool) -> bool:
    assert isinstance(await pool.look(worker="idle"), Wait)
    await pool.enqueue("r1")
    return await pool.woken("idle")


async def wake_of_a_dead_worker_is_passed_on(pool: Pool) -> bool:
    for worker in ("a", "b"):
        await pool.look(worker=worker)
    await pool.enqueue("r1")
    pool.advance(ms=2_000)
    await pool.queue.reap(limit=9)
    return await pool.woken("b") and not await pool.woken("a")


async def plain_request_goes_on(pool: Pool) -> bool:
    await pool.enqueue("r1")
    await pool.step(await pool.claim(), [b"one"], ids=[[1]])
    await _lapse(pool)
    return await pool.state("r1") == "queued"


async def frame_without_ids_is_never_continued(pool: Pool) -> bool:
    await pool.enqueue("r1")
    claim = await pool.claim()
    await pool.step(claim, [b"one"])
    await pool.step(claim, [b"two"], first_seq=2, ids=[[2]])
    await _lapse(pool)
    return await pool.state("r1") == "ended"


async def ids_of_a_repeated_frame_are_kept_once(pool: Pool) -> bool:
    await pool.enqueue("r1")
    claim = await pool.claim()
    await pool.step(claim, [b"one", b"two"], ids=[[1], [2]])
    await pool.step(claim, [b"two", b"three"], first_seq=2, ids=[[2], [3]])
    return await pool.queue.read_ids(request_id="r1", fence=claim.fence) == [1, 2, 3]


async def token_that_is_generated_again_is_billed_once(pool: Pool) -> bool:
    await pool.enqueue("r1")
    await pool.step(await pool.claim(), [b"one"], completion=2, ids=[[1]])
    await _lapse(pool)
    await pool.queue.cancel(request_id="r1", generation=None, reason="cancelled")
    [record] = await pool.usage()
    return record.counts.completion == 1


async def continued_request_may_wait_as_long_again(pool: Pool) -> bool:
    await pool.enqueue("r1", expires_in=6_000)
    await pool.step(await pool.claim(), [b"one"], ids=[[1]])
    await _lapse(pool)
    await pool.queue.reap(limit=9)
    return await pool.state("r1") == "queued"


async def stale_attempt_reads_no_ids(pool: Pool) -> bool:
    await pool.enqueue("r1")
    claim = await pool.claim()
    await pool.step(claim, [b"one"], ids=[[1]])
    await _lapse(pool)
    await pool.claim(worker="other")
    return await pool.queue.read_ids(request_id="r1", fence=claim.fence) is None


async def ended_request_keeps_no_ids(pool: Pool) -> bool:
    await pool.enqueue("r1")
    claim = await pool.claim()
    await pool.step(claim, [b"one"], ids=[[1]])
    await pool.end(claim, last_seq=1)
    return not await pool.redis.exists(pool.queue.keys.prefix + "ids:r1")


async def _lapse(pool: Pool) -> None:
    pool.advance(ms=6_000)
    await pool.queue.reap(limit=9)


RULES = (
    Rule(late_enqueue_is_refused, "enqueue", "now_ms > deadline or", "false or"),
    Rule(
        cancel_of_the_unknown_refuses_its_enqueue,
        "cancel",
        "redis.call('SET', prefix .. 'tomb:' .. rid, 'cancel', 'PX', ARGV[5])",
    ),
    Rule(
        look_refuses_a_later_enqueue, "look", "redis.call('SET', tomb, 'look', 'NX', 'PX', ARGV[3]) == false", "false"
    ),
    Rule(end_by_cancel_is_to_be_settled, "cancel", "redis.call('ZADD', unsettled, now_ms, rid)"),
    Rule(lapse_bills_what_the_log_holds, "reap", "\n  bill_log(rid)\n", "\n"),
    Rule(old_connection_cancels_nothing, "cancel", "if ARGV[3] ~= '' and ARGV[3] ~= j[2] then return 'stale' end"),
    Rule(
        cancelled_request_is_never_requeued,
        "reap",
        "if cancel and cancel ~= '' then\n    close",
        "if false then\n    close",
    ),
    Rule(repeated_step_is_logged_once, "step", "local known = last + 1 - e[3]", "local known = 0"),
    Rule(repeated_claim_gets_the_same, "claim", "if before then return before end"),
    Rule(claim_that_the_worker_does_not_name_goes_back, "step", "if not named[held[i]] and", "if false and"),
    Rule(hung_engine_loses_its_lease, "step", "if e[12] then", "if true then"),
    Rule(lapses_are_no_deaths, "reap", "if why == 'death' then", "if true then"),
    Rule(stale_fence_writes_nothing, "step", "state ~= 'running' or fence ~= e[2]", "state ~= 'running'"),
    Rule(log_names_the_fence_that_wrote_it, "claim", "'epoch', fence, 'worker'", "'epoch', 'none', 'worker'"),
    Rule(
        log_names_who_wrote_it_before_and_up_to_where,
        "claim",
        "if int(last_seq) > 0 then note_writer(job, last_seq) end",
    ),
    Rule(plain_request_goes_on, "reap", "if int(last_seq) ~= int(ids_seq) then", "if int(last_seq) ~= 0 then"),
    Rule(frame_without_ids_is_never_continued, "step", "or covered ~= last then", "then"),
    Rule(ids_of_a_repeated_frame_are_kept_once, "step", "table.concat(ids, '', known + 1)", "table.concat(ids)"),
    Rule(
        token_that_is_generated_again_is_billed_once,
        "reap",
        "completion = math.min(int(completion), ids)",
        "completion = int(completion)",
    ),
    Rule(
        continued_request_may_wait_as_long_again,
        "reap",
        "math.max(int(expires_ms), now_ms + int(expires_ms) - ms(int(since_us)))",
        "int(expires_ms)",
    ),
    Rule(stale_attempt_reads_no_ids, "read_ids", "if j[1] ~= 'running' or j[2] ~= ARGV[3] then return nil end"),
    Rule(ended_request_keeps_no_ids, "end", "if ids_seq then redis.call('DEL', prefix .. 'ids:' .. rid) end"),
    Rule(ack_sends_the_final_frame, "ack", "redis.call('PUBLISH', box, message)"),
    Rule(
        old_dead_letter_is_forgotten,
        "reap",
        "redis.call('XTRIM', dead, 'MINID', whole(ms(clock('')) - DEAD_KEPT_MS))",
    ),
    Rule(
        request_outlives_its_enqueue_deadline,
        "ack",
        "whole(math.max(ttl, tonumber(deadline_ms) - ms(now) + ttl))",
        "whole(ttl)",
    ),
    Rule(worker_that_saw_nothing_is_woken, "claim", "redis.call('ZADD', idle, whole(seq), worker)"),
    Rule(wake_of_a_dead_worker_is_passed_on, "reap", "if waiting() > 0 then passed = passed + wake_one(now_ms) end"),
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.holds.__name__)
class TestARule:
    async def test_holds(self, pool: Pool, rule: Rule) -> None:
        assert await rule.holds(pool)

    async def test_does_not_hold_without_its_line(self, pool: Pool, rule: Rule) -> None:
        rule.take_out(pool)
        assert not await rule.holds(pool)
