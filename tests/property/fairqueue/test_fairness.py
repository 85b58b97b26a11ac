"""What fair means here, on the model with random loads and on the scripts with a smaller one.

Bound: while two tenants both have requests waiting, the service that each got, divided by its weight, differs by at
most 2(U + Q + tick), with U the larger of the largest prompt's service and the output service that the running
requests can still take (Sheng et al., arXiv 2401.00588, theorem 4.4, with the queue's own quantum and tick added).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.jobs import Claim, Ticket, Timings
from contracts.outcomes import Outcome
from contracts.tenancy import ServiceClass
from contracts.tokens import TokenCounts
from contracts.wire import encode
from fairqueue import policy
from fairqueue.messages import StepEntry
from fairqueue.model import PoolModel
from fairqueue.queue import FairQueue, QueueBounds
from stores.redis import open_redis
from tests.factories.jobs import make_ticket

START_US = 1_800_000_000_000_000
BOUNDS = QueueBounds(queued_total_max=100_000, queued_bytes_max=2**40)
TOKENS_PER_ROUND = 8
FOREVER_MS = START_US // 1000 + 10**9


@dataclass(frozen=True)
class Shape:
    """What one tenant sends."""

    weight: int
    prompt: int
    output: int
    batch: bool = False


class ModelPool:
    """The reference model behind the calls of a simulation."""

    def __init__(self) -> None:
        self.model = PoolModel(BOUNDS)

    def enqueue(self, tickets: list[Ticket], now_us: int, weight: int) -> None:
        for ticket in tickets:
            self.model.enqueue(
                ticket,
                now_us=now_us,
                size=len(encode(ticket)),
                mailbox="box",
                enqueue_deadline_ms=now_us // 1000 + 1_000,
                weight_milli=weight,
                queued_max=100_000,
                expires_at_ms=FOREVER_MS,
            )

    def claim(self, now_us: int, nonce: str, slots: int) -> Any:
        return self.model.claim(now_us=now_us, worker_id="worker", nonce=nonce, free_kv_tokens=10**9, free_slots=slots)

    def step(self, now_us: int, entries: list[StepEntry]) -> None:
        holding = [entry.request_id for entry in entries]
        reply = self.model.step(now_us=now_us, worker_id="worker", entries=entries, holding=holding)
        assert not reply.aborts

    def end(self, now_us: int, claim: Claim, counts: TokenCounts) -> None:
        done = self.model.end(
            now_us=now_us,
            request_id=claim.ticket.request_id,
            fence=claim.fence,
            last_seq=0,
            outcome=Outcome.OK,
            error_code="",
            counts=counts,
            delivered_tokens=counts.completion,
        )
        assert done == "ended"
        self.model.ack(request_id=claim.ticket.request_id)
        del self.model.jobs[claim.ticket.request_id]  # the model drops nothing by age, and scans what it keeps


class LuaPool:
    """The scripts behind the same calls."""

    def __init__(self, runner: asyncio.Runner, redis: Any) -> None:
        self.runner, self.now_us = runner, START_US
        self.queue = FairQueue(redis, "fair", BOUNDS, now_us=lambda: self.now_us)

    def enqueue(self, tickets: list[Ticket], now_us: int, weight: int) -> None:
        self.now_us = now_us
        for start in range(0, len(tickets), 50):
            self.runner.run(self._enqueue_at_once(tickets[start : start + 50], weight))

    async def _enqueue_at_once(self, tickets: Sequence[Ticket], weight: int) -> None:
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            for ticket in tickets:
                group.create_task(
                    self.queue.enqueue(
                        ticket,
                        mailbox="box",
                        enqueue_deadline_ms=self.now_us // 1000 + 1_000,
                        weight_milli=weight,
                        queued_max=100_000,
                        expires_at_ms=FOREVER_MS,
                    )
                )

    def claim(self, now_us: int, nonce: str, slots: int) -> Any:
        self.now_us = now_us
        return self.runner.run(
            self.queue.claim(worker_id="worker", nonce=nonce, free_kv_tokens=10**9, free_slots=slots)
        )

    def step(self, now_us: int, entries: list[StepEntry]) -> None:
        self.now_us = now_us
        holding = [entry.request_id for entry in entries]
        reply = self.runner.run(self.queue.step(worker_id="worker", entries=entries, holding=holding))
        assert not reply.aborts

    def end(self, now_us: int, claim: Claim, counts: TokenCounts) -> None:
        self.now_us = now_us
        done = self.runner.run(
            self.queue.end(
                worker_id="worker",
                request_id=claim.ticket.request_id,
                fence=claim.fence,
                last_seq=0,
                outcome=Outcome.OK,
                finish_reason="stop",
                error_code="",
                counts=counts,
                delivered_tokens=counts.completion,
                timings=Timings(),
            )
        )
        assert done


@contextmanager
def lua_pool(valkey_url: str) -> Iterator[LuaPool]:
    with asyncio.Runner() as runner:
        redis = open_redis(valkey_url)
        runner.run(redis.flushall())
        try:
            yield LuaPool(runner, redis)
        finally:
            runner.run(redis.aclose(close_connection_pool=True))


@dataclass
class Simulation:
    """One engine with `slots` places that makes TOKENS_PER_ROUND tokens for each running request in 100 ms."""

    pool: ModelPool | LuaPool
    shapes: dict[str, Shape]
    slots: int
    now_us: int = START_US
    nonce: int = 0
    waiting: dict[str, int] = field(default_factory=dict)
    running: list[tuple[Claim, int]] = field(default_factory=list)
    service: dict[str, int] = field(default_factory=dict)

    def send(self, tenant: str, count: int) -> None:
        shape = self.shapes[tenant]
        numbers = range(self.nonce + 1, self.nonce + 1 + count)
        self.nonce += count
        tickets = [ticket_of(f"r{number}", tenant, shape) for number in numbers]
        self.pool.enqueue(tickets, self.now_us, shape.weight)
        self.waiting[tenant] = self.waiting.get(tenant, 0) + count

    def fill(self) -> None:
        while len(self.running) < self.slots:
            self.nonce += 1
            claim = self.pool.claim(self.now_us, f"n{self.nonce}", self.slots - len(self.running))
            if not isinstance(claim, Claim):
                assert sum(self.waiting.values()) == 0, "a slot is free and a request waits"
                return
            tenant = claim.ticket.tenant_id
            self.waiting[tenant] -= 1
            self.running.append((claim, 0))
            self._serve(tenant, policy.input_service(TokenCounts(prompt=claim.ticket.prompt_tokens)))

    def run_round(self) -> None:
        self.now_us += 100_000
        self.fill()
        entries, left = [], []
        for claim, tokens in self.running:
            fresh = min(TOKENS_PER_ROUND, claim.ticket.max_tokens - tokens)
            self._serve(claim.ticket.tenant_id, policy.output_service(fresh))
            counts = TokenCounts(prompt=claim.ticket.prompt_tokens, completion=tokens + fresh)
            if counts.completion == claim.ticket.max_tokens:
                self.pool.end(self.now_us, claim, counts)
                continue
            left.append((claim, counts.completion))
            entries.append(entry_of(claim, counts))
        self.running = left
        self.pool.step(self.now_us, entries)

    def _serve(self, tenant: str, service: int) -> None:
        self.service[tenant] = self.service.get(tenant, 0) + service

    def gap(self, one: str, other: str) -> int:
        virtual = [policy.virtual(self.service.get(t, 0), self.shapes[t].weight) for t in (one, other)]
        return abs(virtual[0] - virtual[1])

    def bound(self, *, quantum: int = 0) -> int:
        """No prompt here has a prefix and all fit, so nothing leans within a quantum: the bound holds without it."""
        lightest = min(shape.weight for shape in self.shapes.values())
        prompts = max(shape.prompt for shape in self.shapes.values()) * policy.INPUT_MILLI
        outputs = self.slots * max(shape.output for shape in self.shapes.values()) * policy.OUTPUT_MILLI
        tick = policy.output_service(policy.TICK_TOKENS)
        return 2 * (policy.virtual(max(prompts, outputs) + tick, lightest) + quantum)


def ticket_of(request_id: str, tenant: str, shape: Shape) -> Ticket:
    return make_ticket(
        request_id,
        tenant_id=tenant,
        prompt_tokens=shape.prompt,
        max_tokens=shape.output,
        admitted_at_ms=START_US // 1000,
        body=b"{}",
        service_class=ServiceClass.BATCH if shape.batch else ServiceClass.INTERACTIVE,
    )


def entry_of(claim: Claim, counts: TokenCounts) -> StepEntry:
    return StepEntry(
        request_id=claim.ticket.request_id,
        fence=claim.fence,
        first_seq=1,
        frames=[],
        counts=counts,
        delivered_tokens=counts.completion,
        progressed=True,
    )


SHAPES = st.builds(
    Shape,
    weight=st.sampled_from([500, 1_000, 2_000]),
    prompt=st.integers(min_value=1, max_value=2_000),
    output=st.integers(min_value=1, max_value=200),
)


def run_backlogged(simulation: Simulation, rounds: int) -> int:
    """Largest gap seen while both tenants have requests waiting."""
    worst = 0
    for tenant in ("acme", "basic"):
        simulation.send(tenant, 4)
    for _ in range(rounds):
        for tenant in ("acme", "basic"):
            simulation.send(tenant, max(0, 2 * simulation.slots - simulation.waiting[tenant]))
        simulation.run_round()
        worst = max(worst, simulation.gap("acme", "basic"))
    return worst


class TestTwoBackloggedTenants:
    @settings(max_examples=40, deadline=None)
    @given(acme=SHAPES, basic=SHAPES, slots=st.integers(min_value=1, max_value=6))
    def test_get_service_within_the_bound(self, acme: Shape, basic: Shape, slots: int) -> None:
        simulation = Simulation(ModelPool(), {"acme": acme, "basic": basic}, slots)
        assert run_backlogged(simulation, rounds=120) <= simulation.bound()

    def test_get_the_same_although_one_asks_for_forty_times_the_output(self) -> None:
        shapes = {"acme": Shape(1_000, 10, 2_000), "basic": Shape(1_000, 10, 50)}
        simulation = Simulation(ModelPool(), shapes, slots=16)
        run_backlogged(simulation, rounds=1_500)
        share = simulation.service["acme"] * 100 // sum(simulation.service.values())
        assert 48 <= share <= 52

    def test_get_service_by_weight(self) -> None:
        shapes = {"acme": Shape(3_000, 50, 100), "basic": Shape(1_000, 50, 100)}
        simulation = Simulation(ModelPool(), shapes, slots=8)
        run_backlogged(simulation, rounds=1_000)
        share = simulation.service["acme"] * 100 // sum(simulation.service.values())
        assert 73 <= share <= 77

    def test_get_service_within_the_bound_on_the_scripts(self, valkey_url: str) -> None:
        with lua_pool(valkey_url) as pool:
            shapes = {"acme": Shape(2_000, 300, 40), "basic": Shape(1_000, 5, 120)}
            simulation = Simulation(pool, shapes, slots=4)
            assert run_backlogged(simulation, rounds=60) <= simulation.bound()


class TestATenantThatReturns:
    def test_has_earned_no_credit_by_idling(self) -> None:
        shapes = {"acme": Shape(1_000, 10, 100), "basic": Shape(1_000, 10, 100)}
        simulation = Simulation(ModelPool(), shapes, slots=4)
        simulation.send("basic", 1)
        simulation.send("acme", 400)
        for _ in range(500):
            simulation.run_round()
        before = dict(simulation.service)
        simulation.send("basic", 400)
        for _ in range(200):
            simulation.send("acme", max(0, 8 - simulation.waiting["acme"]))
            simulation.run_round()
        got = {tenant: simulation.service[tenant] - before[tenant] for tenant in before}
        assert simulation.service["acme"] > 10 * before["basic"]
        assert abs(got["acme"] - got["basic"]) <= simulation.bound()

    def test_makes_the_other_pay_nothing_for_the_time_when_it_was_alone(self) -> None:
        shapes = {"acme": Shape(1_000, 10, 100), "basic": Shape(1_000, 10, 100)}
        simulation = Simulation(ModelPool(), shapes, slots=4)
        simulation.send("acme", 400)
        for _ in range(500):
            simulation.run_round()
        before = dict(simulation.service)
        simulation.send("basic", 400)
        for _ in range(200):
            simulation.send("acme", max(0, 8 - simulation.waiting["acme"]))
            simulation.run_round()
        got = {tenant: simulation.service[tenant] - before.get(tenant, 0) for tenant in ("acme", "basic")}
        assert abs(got["acme"] - got["basic"]) <= simulation.bound()


class TestANoisyTenant:
    @pytest.mark.slow
    def test_with_ten_thousand_waiting_moves_a_quiet_one_by_less_than_a_quantum(self, valkey_url: str) -> None:
        with lua_pool(valkey_url) as pool:
            shapes = {"mallory": Shape(1_000, 100, 64), "quiet": Shape(1_000, 100, 64)}
            simulation = Simulation(pool, shapes, slots=8)
            simulation.send("mallory", 10_000)
            for _ in range(20):
                simulation.run_round()
            before = simulation.service["mallory"]
            simulation.send("quiet", 1)
            rounds = 0
            while simulation.waiting["quiet"]:
                simulation.run_round()
                rounds += 1
            assert rounds <= 8  # the first slot that comes free
            assert simulation.service["mallory"] - before < policy.QUANTUM_MILLI
