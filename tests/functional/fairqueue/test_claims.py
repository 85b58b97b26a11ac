"""Whom a claim serves: fair order, KV room, charges, bounds."""

from __future__ import annotations

import pytest

from contracts.errors import QueueFull
from contracts.tokens import TokenCounts
from fairqueue import policy
from fairqueue.keys import PoolKeys
from fairqueue.messages import Abort, AbortReason, Place, Wait
from fairqueue.queue import QueueBounds


class TestOrder:
    async def test_serves_the_least_served_tenant(self, pool) -> None:
        for rid in ("a1", "a2", "a3"):
            await pool.enqueue(rid, tenant_id="acme")
        await pool.enqueue("b1", tenant_id="basic")
        order = [(await pool.claim()).ticket.request_id for _ in range(4)]
        assert order == ["a1", "b1", "a2", "a3"]

    async def test_serves_a_tenant_of_double_weight_twice_as_often(self, pool) -> None:
        for number in range(6):
            await pool.enqueue(f"a{number}", tenant_id="acme", weight=2_000)
            await pool.enqueue(f"b{number}", tenant_id="basic", weight=1_000)
        order = [(await pool.claim()).ticket.tenant_id for _ in range(6)]
        assert order.count("acme") == 4

    async def test_tells_the_expected_position(self, pool) -> None:
        positions = [(await pool.enqueue(f"a{number}", tenant_id="acme")).position for number in range(3)]
        assert positions == [1, 2, 3]
        assert (await pool.enqueue("b0", tenant_id="basic")).position == 2

    async def test_tells_how_long_the_request_waited(self, pool) -> None:
        await pool.enqueue("r1")
        pool.advance(ms=250)
        assert (await pool.queue.status(request_id="r1")).queued_ms == 250
        assert (await pool.claim()).queue_us == 250_000


class TestRoom:
    async def test_lets_a_worker_that_holds_nothing_take_any_head(self, pool) -> None:
        await pool.enqueue("big", prompt_tokens=1_000_000)
        assert (await pool.claim(free_kv=10)).ticket.request_id == "big"

    async def test_passes_a_head_that_does_not_fit_at_most_once_per_quantum(self, pool) -> None:
        await pool.enqueue("runs", tenant_id="zero")
        await pool.claim(worker="small")
        await pool.enqueue("big", tenant_id="acme", prompt_tokens=5_000)
        for number in range(4):
            await pool.enqueue(f"b{number}", tenant_id="basic")
        assert (await pool.claim(worker="small", free_kv=100)).ticket.request_id == "b0"
        assert isinstance(await pool.look(worker="small", free_kv=100), Wait)
        assert (await pool.claim(worker="small", free_kv=6_000)).ticket.request_id == "big"

    async def test_counts_every_choice(self, pool) -> None:
        await pool.enqueue("runs", tenant_id="zero")
        await pool.claim()
        await pool.enqueue("four", prompt_tokens=10, max_tokens=20, choices=4)
        assert isinstance(await pool.look(free_kv=89), Wait)
        assert (await pool.claim(free_kv=90)).ticket.request_id == "four"

    async def test_needs_a_free_slot(self, pool) -> None:
        await pool.enqueue("r1")
        assert isinstance(await pool.look(free_slots=0), Wait)
        assert await pool.state("r1") == "queued"


class TestCharges:
    PREPAID = 10 * policy.INPUT_MILLI + 20 * policy.OUTPUT_MILLI

    async def test_are_prepaid_at_claim_and_corrected_at_the_first_token(self, pool) -> None:
        await pool.enqueue("r1")
        claim = await pool.claim()
        assert await pool.counter("acme") == self.PREPAID
        await pool.step(claim, [b"a"], cached=8)
        assert await pool.counter("acme") == self.PREPAID - 8 * (policy.INPUT_MILLI - policy.CACHED_MILLI)

    async def test_come_in_ticks_of_tokens_or_of_time(self, pool) -> None:
        await pool.enqueue("r1", max_tokens=1_000)
        prepaid = 10 * policy.INPUT_MILLI + policy.TICK_TOKENS * policy.OUTPUT_MILLI
        claim = await pool.claim()
        await pool.step(claim, completion=1)
        await pool.step(claim, completion=32)
        assert await pool.counter("acme") == prepaid
        await pool.step(claim, completion=33)
        assert await pool.counter("acme") == prepaid + policy.OUTPUT_MILLI
        await pool.step(claim, completion=60)
        assert await pool.counter("acme") == prepaid + policy.OUTPUT_MILLI
        pool.advance(ms=policy.TICK_MS)
        await pool.step(claim, completion=61)
        assert await pool.counter("acme") == prepaid + 29 * policy.OUTPUT_MILLI

    async def test_are_refunded_at_the_end_to_what_was_used(self, pool) -> None:
        await pool.enqueue("r1")
        await pool.enqueue("r2")
        claim = await pool.claim()
        await pool.end(claim, completion=1)
        assert await pool.counter("acme") == 10 * policy.INPUT_MILLI + policy.OUTPUT_MILLI

    async def test_of_a_retry_count_no_token_twice(self, pool) -> None:
        await pool.enqueue("r1", max_tokens=100)
        await pool.enqueue("r2")
        claim = await pool.claim()
        await pool.step(claim, completion=40)
        used = 10 * policy.INPUT_MILLI + 40 * policy.OUTPUT_MILLI
        await pool.queue.hand_back(worker_id="worker", request_id="r1", fence=claim.fence)
        assert await pool.counter("acme") == used
        again = await pool.claim()
        await pool.step(again, completion=40)
        assert await pool.counter("acme") == used
        await pool.end(again, completion=41)
        assert await pool.counter("acme") == used + policy.OUTPUT_MILLI

    async def test_leave_no_counter_behind_an_idle_tenant_without_debt(self, pool) -> None:
        for number in range(3):
            await pool.enqueue(f"r{number}", tenant_id=f"tenant{number}")
            await pool.end(await pool.claim(), completion=number)
        for number in range(50):
            await pool.enqueue(f"s{number}", tenant_id="busy")
            await pool.end(await pool.claim(), completion=20)
        assert [await pool.counter(f"tenant{number}") for number in range(3)] == [None, None, None]


class TestBounds:
    @pytest.fixture
    def bounds(self) -> QueueBounds:
        return QueueBounds(queued_total_max=3, queued_bytes_max=4_000)

    async def test_of_a_tenant_leave_room_for_others(self, pool) -> None:
        await pool.enqueue("a1", queued_max=1)
        with pytest.raises(
            QueueFull, match="of the organization for this model reached: limit 1, waiting 1, requested 1; only"
        ):
            await pool.enqueue("a2", queued_max=1)
        assert (await pool.enqueue("b1", tenant_id="basic", queued_max=1)).already is False

    async def test_of_zero_block(self, pool) -> None:
        with pytest.raises(
            QueueFull, match="limit on waiting requests of the organization is 0; only an operator"
        ) as caught:
            await pool.enqueue("a1", queued_max=0)
        assert caught.value.retry_after_ms is None

    async def test_of_the_pool_hold_in_count(self, pool) -> None:
        for number in range(3):
            await pool.enqueue(f"a{number}")
        with pytest.raises(QueueFull, match="is full: limit 3 for all customers together, requested 1; no setting"):
            await pool.enqueue("a4")
        assert (await pool.queue.depths()).waiting == 3

    async def test_of_the_pool_hold_in_bytes(self, pool) -> None:
        with pytest.raises(QueueFull, match="for so many bytes: limit 4000 for all customers together, requested 4"):
            await pool.enqueue("a1", body=b"x" * 4_000)
        assert (await pool.queue.depths()).waiting_bytes == 0

    async def test_count_waiting_requests_only(self, pool) -> None:
        for number in range(3):
            await pool.enqueue(f"a{number}")
        await pool.claim()
        await pool.enqueue("a4")
        depths = await pool.queue.depths()
        assert (depths.waiting, depths.running) == (3, 1)

    async def test_tell_a_time_from_the_measured_rate(self, pool) -> None:
        pool.now[0] -= pool.now[0] % 60_000_000
        for number in range(10):
            await pool.enqueue(f"a{number}")
            await pool.end(await pool.claim(), completion=5)
        pool.advance(ms=20_000)
        for number in range(3):
            await pool.enqueue(f"b{number}")
        with pytest.raises(QueueFull) as caught:
            await pool.enqueue("b4")
        assert caught.value.retry_after_ms == 2_000
        rate = await pool.queue.service_rate()
        assert (rate.requests_per_1000s, rate.tokens_per_1000s) == (500, 7_500)
        last = await pool.queue.status(request_id="b2")
        assert await pool.queue.place(last) == Place(position=3, waited_ms=0, wait_ms=6_000)


class TestLogBound:
    @pytest.fixture
    def bounds(self) -> QueueBounds:
        return QueueBounds(log_bytes_max=10)

    async def test_aborts_what_would_pass_it_and_keeps_what_was_logged(self, pool) -> None:
        await pool.enqueue("r1")
        claim = await pool.claim()
        assert (await pool.step(claim, [b"12345"])).aborts == []
        reply = await pool.step(claim, [b"123456"], first_seq=2)
        assert reply.aborts == [Abort(request_id="r1", reason=AbortReason.LOG_FULL)]
        assert (await pool.queue.read_log(request_id="r1", after_seq=0, limit=9)).frames == [b"12345"]


class TestStatus:
    async def test_carries_the_ticket_without_its_body(self, pool) -> None:
        await pool.enqueue("r1")
        claim = await pool.claim(worker="w3")
        await pool.step(claim, [b"a"], worker="w3")
        status = await pool.queue.status(request_id="r1")
        assert (status.tenant_id, status.attempt, status.worker_id, status.last_seq) == ("acme", 1, "w3", 1)
        assert status.counts == TokenCounts(prompt=10, completion=1)
        assert status.ticket.body == b""
        assert await pool.queue.status(request_id="unknown") is None


class TestACluster:
    def test_has_the_slots_of_a_pool_on_one_node_of_three(self, cluster) -> None:
        prefix = PoolKeys("pool").prefix
        urls = {cluster.url_of(key) for key in PoolKeys("pool").script_keys}
        assert urls == {cluster.url_of(prefix)}
        assert len({cluster.url_of(f"key{number}") for number in range(64)}) == 3
