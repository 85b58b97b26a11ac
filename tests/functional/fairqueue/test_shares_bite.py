"""Classes, bounds and prefixes: each rule holds, and without its line it does not.

As in test_rules_bite: a scenario runs on the scripts as they are and on a script that lacks the rule.
"""

from __future__ import annotations

from typing import Any

import pytest

from contracts.errors import QueueFull
from contracts.jobs import Claim
from contracts.tenancy import ServiceClass
from fairqueue.messages import Wait
from fairqueue.policy import WARM_MAX, QueueBounds
from fairqueue.replies import full_text
from tests.functional.fairqueue.conftest import Pool
from tests.functional.fairqueue.rules import Rule

BATCH = ServiceClass.BATCH
TOPIC: dict[str, Any] = {"prompt_tokens": 800, "body": b'{"messages":["a topic"]}'}  # a patience of 100 ms


@pytest.fixture
def bounds() -> QueueBounds:
    return QueueBounds(
        queued_total_max=1_000, queued_tokens_max=100_000, tenant_tokens_max=60_000, tenant_bytes_max=50_000
    )


# Classes ------------------------------------------------------------------------------------------------------------


async def batch_gets_its_reserved_share(pool: Pool) -> bool:
    return await _batch_of_ten(pool) >= 2


async def interactive_gets_the_rest(pool: Pool) -> bool:
    return await _batch_of_ten(pool) <= 2


async def _batch_of_ten(pool: Pool) -> int:
    """Claims of ten that serve batch, while requests of both classes wait."""
    for number in range(10):
        await pool.enqueue(f"b{number}", service_class=BATCH)
        await pool.enqueue(f"i{number}")
    return await _batch_claims(pool, 10)


async def _batch_claims(pool: Pool, claims: int) -> int:
    found = [(await pool.claim(free_slots=100)).ticket.service_class for _ in range(claims)]
    return found.count(BATCH)


async def batch_earns_no_credit_by_idling(pool: Pool) -> bool:
    await pool.enqueue("alone")
    await pool.step(await pool.claim(), completion=5_000)
    for number in range(10):
        await pool.enqueue(f"i{number}")
        await pool.enqueue(f"b{number}", service_class=BATCH)
    return await _batch_claims(pool, 5) <= 1


async def class_that_comes_back_by_a_requeue_has_no_credit(pool: Pool) -> bool:
    await pool.enqueue("b0", service_class=BATCH)
    back = await pool.claim()
    await pool.enqueue("alone")
    await pool.step(await pool.claim(), completion=5_000, holding=["alone", "b0"])
    for number in range(10):
        await pool.enqueue(f"i{number}")
    await pool.queue.hand_back(worker_id="worker", request_id="b0", fence=back.fence)
    for number in range(1, 10):
        await pool.enqueue(f"b{number}", service_class=BATCH)
    return await _batch_claims(pool, 5) <= 1


async def long_answers_count_for_their_class(pool: Pool) -> bool:
    for number in range(9):
        await pool.enqueue(f"i{number}")
        await pool.enqueue(f"b{number}", service_class=BATCH)
    claim = await pool.claim()
    await pool.step(claim, completion=400)
    return claim.ticket.service_class is not BATCH and await _batch_claims(pool, 4) == 4


async def idle_workers_take_batch_when_nothing_else_waits(pool: Pool) -> bool:
    for number in range(3):
        await pool.enqueue(f"b{number}", service_class=BATCH)
    return await _batch_claims_or_waits(pool, 3) == 3


async def _batch_claims_or_waits(pool: Pool, looks: int) -> int:
    return sum([isinstance(await pool.look(), Claim) for _ in range(looks)])


# Bounds -------------------------------------------------------------------------------------------------------------


async def tokens_of_a_tenant_are_bounded(pool: Pool) -> bool:
    await pool.enqueue("r1", prompt_tokens=50_000)
    said = await _refusal(pool, "r2", prompt_tokens=10_000)
    return said == full_text("tenant_tokens", limit=60_000, used=50_020, asked=10_020)


async def bytes_of_a_tenant_are_bounded(pool: Pool) -> bool:
    await pool.enqueue("r1", body=b"x" * 40_000)
    said, size = await _refusal(pool, "r2", body=b"x" * 40_000), (await pool.queue.depths()).waiting_bytes
    return said == full_text("tenant_bytes", limit=50_000, used=size, asked=size)


async def tokens_of_the_pool_are_bounded(pool: Pool) -> bool:
    await pool.enqueue("r1", prompt_tokens=50_000)
    said = await _refusal(pool, "r2", prompt_tokens=50_000, tenant_id="other")
    return said == full_text("tokens", limit=100_000, used=50_020, asked=50_020)


async def what_runs_does_not_count_as_waiting(pool: Pool) -> bool:
    await pool.enqueue("r1", prompt_tokens=50_000)
    await pool.claim()
    return await _refusal(pool, "r2", prompt_tokens=50_000) == ""


async def what_came_back_counts_again(pool: Pool) -> bool:
    await pool.enqueue("r1", prompt_tokens=50_000)
    claim = await pool.claim()
    await pool.queue.hand_back(worker_id="worker", request_id="r1", fence=claim.fence)
    return await _refusal(pool, "r2", prompt_tokens=10_000) != ""


async def what_ended_while_it_waited_counts_no_more(pool: Pool) -> bool:
    await pool.enqueue("r1", prompt_tokens=50_000)
    await pool.queue.cancel(request_id="r1", generation=None, reason="cancelled")
    return await _refusal(pool, "r2", prompt_tokens=50_000) == ""


async def _refusal(pool: Pool, request_id: str, **changes: Any) -> str:
    try:
        await pool.enqueue(request_id, **changes)
    except QueueFull as error:
        return str(error)
    return ""


async def time_to_come_again_counts_what_must_leave_first(pool: Pool) -> bool:
    pool.now[0] -= pool.now[0] % 60_000_000
    for number in range(10):
        await pool.enqueue(f"done{number}")
        await pool.end(await pool.claim(), completion=5)
    pool.advance(ms=20_000)  # ten ends in twenty seconds
    for number in range(5):
        await pool.enqueue(f"r{number}", prompt_tokens=10_000)
    try:
        await pool.enqueue("r9", prompt_tokens=40_000)
    except QueueFull as error:
        return error.retry_after_ms == 4 * 2_000  # 50,100 wait, 40,020 come, 60,000 may: four of five must leave
    return False


# Prefixes -----------------------------------------------------------------------------------------------------------


async def request_is_left_to_the_worker_that_holds_its_prefix(pool: Pool) -> bool:
    await _serve(pool, "r1", worker="warm")
    await pool.enqueue("r2", **TOPIC)
    left = await pool.look(worker="cold")
    return isinstance(left, Wait) and (await pool.claim(worker="warm")).ticket.request_id == "r2"


async def patience_has_an_end(pool: Pool) -> bool:
    await _serve(pool, "r1", worker="warm")
    await pool.enqueue("r2", **TOPIC)
    pool.advance(ms=100)
    return isinstance(await pool.look(worker="cold"), Claim)


async def worker_is_told_when_patience_ends(pool: Pool) -> bool:
    await _serve(pool, "r1", worker="warm")
    await pool.enqueue("r2", **TOPIC)
    return await pool.look(worker="cold") == Wait(until_ms=pool.now_ms + 100)


async def worker_that_holds_the_prefix_is_woken_first(pool: Pool) -> bool:
    await _serve(pool, "r1", worker="warm")
    for worker in ("cold", "warm"):
        await pool.look(worker=worker)
    await pool.enqueue("r2", **TOPIC)
    return await pool.woken("warm")


async def dead_engine_is_left_nothing(pool: Pool) -> bool:
    await pool.enqueue("r1", **TOPIC)
    claim = await pool.claim(worker="warm")
    await pool.queue.engine_died(worker_id="warm", fences={"r1": claim.fence})
    return isinstance(await pool.look(worker="cold"), Claim)


async def worker_that_starts_anew_is_left_nothing(pool: Pool) -> bool:
    await _serve(pool, "r1", worker="warm")
    await pool.queue.register(worker_id="warm")
    await pool.enqueue("r2", **TOPIC)
    return isinstance(await pool.look(worker="cold"), Claim)


async def worker_that_leaves_is_left_nothing(pool: Pool) -> bool:
    await _serve(pool, "r1", worker="warm")
    await pool.queue.leave(worker_id="warm")
    await pool.enqueue("r2", **TOPIC)
    return isinstance(await pool.look(worker="cold"), Claim)


async def worker_that_did_not_wake_is_left_nothing(pool: Pool) -> bool:
    await _serve(pool, "r1", worker="warm")
    await pool.look(worker="warm")
    await pool.enqueue("r2")
    pool.advance(ms=2_000)
    await pool.queue.reap(limit=9)
    await pool.enqueue("r3", tenant_id="other", **TOPIC)
    await pool.claim(worker="cold")
    return isinstance(await pool.look(worker="cold"), Claim)


async def what_stands_behind_may_be_taken(pool: Pool) -> bool:
    await _serve(pool, "r1", worker="warm")
    await pool.enqueue("r2", **TOPIC)
    await pool.enqueue("r3")
    found = await pool.look(worker="cold")
    return isinstance(found, Claim) and found.ticket.request_id == "r3"


async def fair_order_leans_no_further_than_a_quantum(pool: Pool) -> bool:
    await _serve(pool, "r1", worker="warm")
    await pool.enqueue("big", tenant_id="other", prompt_tokens=5_000)
    await pool.enqueue("other", tenant_id="other")
    await pool.claim(worker="cold")  # the other tenant is now more than a quantum ahead
    await pool.enqueue("r2", **TOPIC)
    return isinstance(await pool.look(worker="cold"), Wait)


async def worker_takes_what_it_holds_the_prefix_of(pool: Pool) -> bool:
    return await _second_tenants_claim(pool, prompt_tokens=800) == "warm"


async def warm_request_is_taken_within_a_quantum_only(pool: Pool) -> bool:
    return await _second_tenants_claim(pool, prompt_tokens=5_000) == "first"


async def warm_request_that_does_not_fit_is_not_taken(pool: Pool) -> bool:
    await pool.enqueue("runs", tenant_id="zero")
    await pool.claim()
    return await _second_tenants_claim(pool, prompt_tokens=800, free_kv=500) == "first"


async def _second_tenants_claim(pool: Pool, *, prompt_tokens: int, free_kv: int = 10**6) -> str:
    """What a worker claims that served a tenant before, of it and of one that got nothing yet."""
    await pool.enqueue("r1", **{**TOPIC, "prompt_tokens": prompt_tokens})
    await pool.enqueue("warm", **TOPIC)
    await pool.claim(free_kv=10**6)
    await pool.enqueue("first", tenant_id="other")
    return (await pool.claim(free_kv=free_kv)).ticket.request_id


async def index_is_bounded(pool: Pool) -> bool:
    for number in range(WARM_MAX + 2):
        await _serve(pool, f"r{number}", worker="warm", body=b'{"messages":["topic %d"]}' % number)
    return int(await pool.redis.hlen(pool.queue.keys.prefix + "warm")) == WARM_MAX


async def _serve(pool: Pool, request_id: str, *, worker: str, **changes: Any) -> None:
    await pool.enqueue(request_id, **{**TOPIC, **changes})
    await pool.end(await pool.claim(worker=worker, free_kv=10**9), completion=1)


RULES = (
    Rule(batch_gets_its_reserved_share, "claim", "if lead > 0 then return {batch, interactive}, lead end"),
    Rule(interactive_gets_the_rest, "claim", "runs = 2, parts = -INTERACTIVE_SHARE", "runs = 2, parts = -1"),
    Rule(
        batch_earns_no_credit_by_idling,
        "enqueue",
        "if without_credit(lane, lead) ~= lead then redis.call('HSET', meta, 'lead', 0) end",
    ),
    Rule(
        class_that_comes_back_by_a_requeue_has_no_credit,
        "hand_back",
        "redis.call('HSET', meta, 'lead', whole(without_credit(lane, int(redis.call('HGET', meta, 'lead')))))",
    ),
    Rule(long_answers_count_for_their_class, "step", "move_lead(lead)\n", "\n"),
    Rule(
        idle_workers_take_batch_when_nothing_else_waits,
        "claim",
        "if redis.call('EXISTS', interactive.act) == 0 then return {batch}, 0 end",
        "if redis.call('EXISTS', interactive.act) == 0 then return {interactive}, 0 end",
    ),
    Rule(tokens_of_a_tenant_are_bounded, "enqueue", "{'tenant_tokens', load[4], load[3], need, tonumber(ARGV[18])},"),
    Rule(bytes_of_a_tenant_are_bounded, "enqueue", "{'tenant_bytes', load[5], load[3], bytes, tonumber(ARGV[19])},"),
    Rule(tokens_of_the_pool_are_bounded, "enqueue", "{'tokens', tokens, all, need, tonumber(ARGV[17])},"),
    Rule(
        what_runs_does_not_count_as_waiting,
        "claim",
        "load[3], load[4], load[5] = load[3] - 1, load[4] - need, load[5] - bytes",
    ),
    Rule(what_came_back_counts_again, "hand_back", "weigh(load, 1, int(need), int(bytes))"),
    Rule(what_ended_while_it_waited_counts_no_more, "cancel", "weigh(load, -1, int(need), int(bytes))"),
    Rule(
        time_to_come_again_counts_what_must_leave_first,
        "enqueue",
        "leave = math.ceil((used + added - allowed) * requests / used)",
    ),
    Rule(
        request_is_left_to_the_worker_that_holds_its_prefix,
        "claim",
        "elseif left_to_another(key, patience_ms, since_us) then",
        "elseif false then",
    ),
    Rule(patience_has_an_end, "claim", "or now >= over then return false end", "then return false end"),
    Rule(
        worker_is_told_when_patience_ends,
        "claim",
        "left_until = math.min(left_until or math.huge, math.ceil(over / 1000))",
    ),
    Rule(worker_that_holds_the_prefix_is_woken_first, "enqueue", "holder = redis.call('HGET', warm, ARGV[21])"),
    Rule(dead_engine_is_left_nothing, "engine_died", "\n    forget(worker)\n", "\n"),
    Rule(worker_that_starts_anew_is_left_nothing, "register", "forget(ARGV[2])"),
    Rule(worker_that_leaves_is_left_nothing, "leave", "forget(ARGV[2])"),
    Rule(worker_that_did_not_wake_is_left_nothing, "reap", "\n  forget(worker)\n", "\n"),
    Rule(what_stands_behind_may_be_taken, "claim", "tenant, 0, DEPTH - 1)", "tenant, 0, 0)"),
    Rule(
        fair_order_leans_no_further_than_a_quantum,
        "claim",
        "if left and counter > least + quantum then return nil end",
    ),
    Rule(
        worker_takes_what_it_holds_the_prefix_of,
        "claim",
        "return warmer(lane, index, least, found, key)",
        "return found",
    ),
    Rule(warm_request_is_taken_within_a_quantum_only, "claim", "if counter > least + quantum then return found end"),
    Rule(
        warm_request_that_does_not_fit_is_not_taken,
        "claim",
        "and (tonumber(need) <= free_kv or redis.call('EXISTS', held) == 0) then\n      return",
        "then return",
    ),
    Rule(
        index_is_bounded, "claim", "if redis.call('ZCARD', list) <= WARM_MAX then return end", "if true then return end"
    ),
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.holds.__name__)
class TestARule:
    async def test_holds(self, pool: Pool, rule: Rule) -> None:
        assert await rule.holds(pool)

    async def test_does_not_hold_without_its_line(self, pool: Pool, rule: Rule) -> None:
        rule.take_out(pool)
        assert not await rule.holds(pool)
