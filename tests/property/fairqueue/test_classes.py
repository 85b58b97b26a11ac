"""Two classes share a pool by parts, tenants stay fair within each, and work is left to warm workers for a while.

On the model, with random loads. Bounds as in test_fairness, with a class in the place of a tenant and its part of the
service in the place of a weight.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.jobs import Claim
from contracts.outcomes import JobState
from contracts.tokens import TokenCounts
from fairqueue import policy
from fairqueue.messages import Wait
from fairqueue.model import PoolModel
from tests.factories.jobs import make_ticket
from tests.property.fairqueue.test_fairness import (
    BOUNDS,
    FOREVER_MS,
    START_US,
    ModelPool,
    Shape,
    Simulation,
    entry_of,
    lua_pool,
)

LENGTHS = {
    "prompt": st.integers(min_value=1, max_value=2_000),
    "output": st.integers(min_value=1, max_value=200),
    "weight": st.sampled_from([500, 1_000, 2_000]),
}
CHAT = st.builds(Shape, **LENGTHS)
NIGHTLY = st.builds(Shape, **LENGTHS, batch=st.just(True))


def parts_gap(simulation: Simulation) -> int:
    """How far the classes are from their parts, in milli-tokens of a class that gets one part."""
    total = {True: 0, False: 0}
    for tenant, service in simulation.service.items():
        total[simulation.shapes[tenant].batch] += service
    return abs(total[False] // policy.INTERACTIVE_SHARE - total[True] // policy.BATCH_SHARE)


def parts_bound(simulation: Simulation) -> int:
    prompts = max(shape.prompt for shape in simulation.shapes.values()) * policy.INPUT_MILLI
    outputs = simulation.slots * max(shape.output for shape in simulation.shapes.values()) * policy.OUTPUT_MILLI
    return 2 * (max(prompts, outputs) + policy.output_service(policy.TICK_TOKENS))


def keep_waiting(simulation: Simulation) -> None:
    for tenant in simulation.shapes:
        simulation.send(tenant, max(0, 2 * simulation.slots - simulation.waiting.get(tenant, 0)))


class TestTwoClassesThatBothWait:
    @settings(max_examples=40, deadline=None)
    @given(chat=CHAT, nightly=NIGHTLY, slots=st.integers(min_value=1, max_value=6))
    def test_get_their_parts_within_the_bound(self, chat: Shape, nightly: Shape, slots: int) -> None:
        simulation = Simulation(ModelPool(), {"chat": chat, "nightly": nightly}, slots)
        for _ in range(120):
            keep_waiting(simulation)
            simulation.run_round()
            assert parts_gap(simulation) <= parts_bound(simulation)

    @settings(max_examples=20, deadline=None)
    @given(one=NIGHTLY, other=NIGHTLY, chat=CHAT, slots=st.integers(min_value=1, max_value=4))
    def test_leave_the_tenants_of_each_as_fair_as_before(
        self, one: Shape, other: Shape, chat: Shape, slots: int
    ) -> None:
        simulation = Simulation(ModelPool(), {"one": one, "other": other, "chat": chat}, slots)
        for _ in range(100):
            keep_waiting(simulation)
            simulation.run_round()
            assert simulation.gap("one", "other") <= simulation.bound()

    def test_get_four_fifths_and_one_on_the_scripts(self, valkey_url: str) -> None:
        with lua_pool(valkey_url) as pool:
            shapes = {"chat": Shape(1_000, 50, 40), "nightly": Shape(1_000, 50, 40, batch=True)}
            simulation = Simulation(pool, shapes, slots=4)
            for _ in range(150):
                keep_waiting(simulation)
                simulation.run_round()
            share = simulation.service["nightly"] * 100 // sum(simulation.service.values())
            assert 18 <= share <= 22


class TestAClassThatReturns:
    def test_has_earned_no_credit_by_idling(self) -> None:
        shapes = {"chat": Shape(1_000, 10, 100), "nightly": Shape(1_000, 10, 100, batch=True)}
        simulation = Simulation(ModelPool(), shapes, slots=4)
        for _ in range(300):
            simulation.send("chat", max(0, 8 - simulation.waiting.get("chat", 0)))
            simulation.run_round()
        simulation.service.clear()
        for _ in range(150):
            keep_waiting(simulation)
            simulation.run_round()
            assert parts_gap(simulation) <= parts_bound(simulation)

    def test_is_served_first_when_the_other_ran_alone(self) -> None:
        shapes = {"chat": Shape(1_000, 10, 20), "nightly": Shape(1_000, 10, 200, batch=True)}
        simulation = Simulation(ModelPool(), shapes, slots=1)
        simulation.send("nightly", 50)
        for _ in range(100):
            simulation.run_round()
        simulation.send("chat", 1)
        while simulation.waiting["chat"]:
            before = simulation.waiting["nightly"]
            simulation.run_round()
        assert before - simulation.waiting["nightly"] == 0


@dataclass
class Warm:
    """Two workers of `slots` places, two tenants whose requests have long prompts of a few topics."""

    slots: int
    model: PoolModel = field(default_factory=lambda: PoolModel(BOUNDS))
    now_us: int = START_US
    numbers: int = 0
    running: dict[str, list[tuple[Claim, int]]] = field(default_factory=lambda: {"w1": [], "w2": []})
    service: dict[str, int] = field(default_factory=lambda: {"acme": 0, "basic": 0})

    def send(self, tenant: str, topic: int) -> None:
        self.numbers += 1
        ticket = make_ticket(
            f"r{self.numbers}", tenant_id=tenant, prompt_tokens=1_600, max_tokens=16, body=b'{"messages":[%d]}' % topic
        )
        self.model.enqueue(
            ticket, now_us=self.now_us, size=100, mailbox="box", enqueue_deadline_ms=self.now_us // 1000 + 1_000,
            weight_milli=1_000, queued_max=10**6, expires_at_ms=FOREVER_MS,
        )  # fmt: skip

    def waiting_of(self, tenant: str) -> int:
        return len(self.model.queue_of(tenant, batch=False))

    def fill(self, worker: str) -> None:
        while len(self.running[worker]) < self.slots:
            self.numbers += 1
            found = self.model.claim(
                now_us=self.now_us, worker_id=worker, nonce=f"n{self.numbers}", free_kv_tokens=10**9, free_slots=9
            )
            if isinstance(found, Wait):
                self._check_patience(worker)
                return
            self.running[worker].append((found, 0))
            self.service[found.ticket.tenant_id] += found.ticket.prompt_tokens * policy.INPUT_MILLI

    def _check_patience(self, worker: str) -> None:
        """What a worker with a free place leaves is young, and another worker holds its prefix."""
        for tenant in ("acme", "basic"):
            for rid in self.model.queue_of(tenant, batch=False)[: policy.HEADS_LOOKED_AT]:
                job = self.model.jobs[rid]
                lean = self.model.lanes[False].counters[tenant] - min(self.model.lanes[False].counters.values())
                if lean <= policy.QUANTUM_MILLI:
                    assert self.now_us - job.since_us < 200_000
                    assert self.model.warm[job.prefix] != worker

    def run_round(self) -> None:
        self.now_us += 40_000
        for worker, held in self.running.items():
            self.fill(worker)
            left = []
            for claim, tokens in held:
                self.service[claim.ticket.tenant_id] += policy.output_service(4)
                counts = TokenCounts(prompt=claim.ticket.prompt_tokens, completion=tokens + 4)
                if counts.completion == claim.ticket.max_tokens:
                    ModelPool.end(self, self.now_us, claim, counts)  # type: ignore[arg-type] # it has a model
                else:
                    left.append((claim, counts.completion))
            entries = [entry_of(claim, TokenCounts(prompt=1_600, completion=tokens)) for claim, tokens in left]
            holding = [entry.request_id for entry in entries]
            self.model.step(now_us=self.now_us, worker_id=worker, entries=entries, holding=holding)
            self.running[worker] = left


class TestRequestsWithAPrefix:
    @settings(max_examples=30, deadline=None)
    @given(topics=st.lists(st.integers(0, 3), min_size=1, max_size=40), slots=st.integers(1, 3))
    def test_are_left_to_another_only_while_they_are_young_and_it_holds_it(self, topics: list[int], slots: int) -> None:
        pool = Warm(slots)
        for number, topic in enumerate(topics):
            pool.send("acme" if number % 3 else "basic", topic)
            pool.run_round()
        rounds = 0
        while any(job.state is not JobState.SETTLED for job in pool.model.jobs.values()):
            pool.run_round()
            rounds += 1
        assert rounds <= 8 * len(topics) + 8

    @settings(max_examples=20, deadline=None)
    @given(own=st.integers(0, 3), slots=st.integers(1, 3))
    def test_lean_the_service_no_further_than_a_quantum_beyond_the_bound(self, own: int, slots: int) -> None:
        pool = Warm(slots)
        bound = 2 * (2 * slots * (1_600 * policy.INPUT_MILLI + policy.output_service(32)) + policy.QUANTUM_MILLI)
        for number in range(80):
            for tenant, topic in (("acme", 0), ("basic", own)):
                while pool.waiting_of(tenant) < 6:
                    pool.send(tenant, topic if number % 2 else topic + 1)
            pool.run_round()
            assert abs(pool.service["acme"] - pool.service["basic"]) <= bound
