"""The scripts on a real Valkey, driven step by step against the reference model: same answers, same state."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from contracts.errors import DeadlinePassed, QueueFull
from contracts.jobs import Claim, Ticket, Timings
from contracts.outcomes import JobState, Outcome
from contracts.tenancy import ServiceClass
from contracts.tokens import TokenCounts
from contracts.wire import encode
from fairqueue.messages import StepEntry, Wait, pack_ids, without_body
from fairqueue.model import PoolModel
from fairqueue.queue import FairQueue, QueueBounds
from stores.redis import open_redis
from tests.factories.jobs import make_ticket
from tests.functional.fairqueue.cluster import Cluster
from tests.property.fairqueue.pool_state import final_for, read_state

T = TypeVar("T")

START_US = 1_800_000_000_000_000
BOUNDS = QueueBounds(
    queued_total_max=8,
    queued_bytes_max=6_000,
    tenant_bytes_max=4_000,
    queued_tokens_max=6_000,
    tenant_tokens_max=3_500,
    lease_ms=5_000,
    holding_margin_ms=2_000,
    lapses_max=2,
    deaths_max=1,
    log_bytes_max=120,
)
TENANTS = ["acme", "basic", "mallory"]
WORKERS = ["w1", "w2"]
POOLS = itertools.count()


def ticket_of(
    request_id: str, tenant: str, prompt: int, max_tokens: int, *, batch: bool = False, topic: str = ""
) -> Ticket:
    """A prompt of 512 tokens or more has a prefix, by its topic."""
    return make_ticket(
        request_id,
        tenant_id=tenant,
        prompt_tokens=prompt,
        max_tokens=max_tokens,
        admitted_at_ms=START_US // 1000,
        service_class=ServiceClass.BATCH if batch else ServiceClass.INTERACTIVE,
        body=b'{"messages":["%s"]}' % topic.encode(),
    )


async def outcome_of(call: Awaitable[T]) -> T | str:
    """The answer, or the error, so that both sides can be compared: a full queue says which bound, and its figures."""
    try:
        return await call
    except QueueFull as error:
        return str(error)
    except DeadlinePassed as error:
        return type(error).__name__


class PoolMachine(RuleBasedStateMachine):
    """Every operation goes to both sides; the answers must be equal, and after each step the whole state."""

    requests = Bundle("requests")
    claims = Bundle("claims")

    def __init__(self, runner: asyncio.Runner, redis: Any) -> None:
        super().__init__()
        self.runner, self.redis = runner, redis
        self.now_us = START_US
        self.ids = itertools.count()
        self.nonces = itertools.count()
        self.model = PoolModel(BOUNDS)
        self.queue = FairQueue(redis, f"m{next(POOLS)}", BOUNDS, now_us=lambda: self.now_us)

    def run(self, call: Awaitable[T]) -> T:
        async def wrapped() -> T:
            async with asyncio.timeout(10):
                return await call

        return self.runner.run(wrapped())

    # Rules ----------------------------------------------------------------------------------------------------------

    @initialize(target=requests, tenants=st.lists(st.sampled_from(TENANTS), min_size=3, max_size=5))
    def begin_with_some_waiting(self, tenants: list[str]) -> Any:
        return multiple(*[self.enqueue(tenant, 10 * i, 40 * i + 20, 1_000) for i, tenant in enumerate(tenants)])

    @rule(
        target=requests,
        tenant=st.sampled_from(TENANTS),
        prompt=st.sampled_from([0, 10, 700]),
        max_tokens=st.sampled_from([1, 40, 900]),
        weight=st.sampled_from([1_000, 2_000, 333]),
        batch=st.booleans(),
        topic=st.sampled_from(["law", "tax"]),
    )
    def enqueue(
        self, tenant: str, prompt: int, max_tokens: int, weight: int, *, batch: bool = False, topic: str = ""
    ) -> Ticket:
        ticket = ticket_of(f"r{next(self.ids):03}", tenant, prompt, max_tokens, batch=batch, topic=topic)
        self._enqueue(ticket, "box", 5_000, 600_000, weight, 10)
        return ticket

    @rule(
        target=requests,
        tenant=st.sampled_from(TENANTS),
        deadline_in=st.sampled_from([5_000, 0, -1, 4_000_000]),
        expires_in=st.sampled_from([60_000, 3_000, 0]),
        queued_max=st.sampled_from([10, 3, 0]),
        batch=st.booleans(),
        max_tokens=st.sampled_from([10, 2_000, 4_000]),
    )
    def enqueue_at_the_bounds(
        self, tenant: str, deadline_in: int, expires_in: int, queued_max: int, batch: bool, max_tokens: int
    ) -> Ticket:
        ticket = ticket_of(f"r{next(self.ids):03}", tenant, 10, max_tokens, batch=batch)
        self._enqueue(ticket, "box", deadline_in, expires_in, 1_000, queued_max)
        return ticket

    @rule(ticket=requests, mailbox=st.sampled_from(["a", "b", "c", "d", "e"]), deadline_in=st.sampled_from([5_000, -1]))
    def enqueue_again(self, ticket: Ticket, mailbox: str, deadline_in: int) -> None:
        self._enqueue(ticket, mailbox, deadline_in, 60_000, 1_000, 10)

    def _enqueue(
        self, ticket: Ticket, mailbox: str, deadline_in: int, expires_in: int, weight: int, queued_max: int
    ) -> None:
        now_ms = self.now_us // 1000
        options = {
            "mailbox": mailbox,
            "enqueue_deadline_ms": now_ms + deadline_in,
            "weight_milli": weight,
            "queued_max": queued_max,
            "expires_at_ms": now_ms + expires_in,
        }

        async def modelled() -> Any:
            size = len(ticket.body) + len(encode(without_body(ticket)))
            return self.model.enqueue(ticket, now_us=self.now_us, size=size, **options)

        real = self.run(outcome_of(self.queue.enqueue(ticket, **options)))
        assert real == self.run(outcome_of(modelled()))

    @rule(
        target=claims,
        worker=st.sampled_from(WORKERS),
        free_kv=st.sampled_from([100, 800, 10_000]),
        free_slots=st.sampled_from([4, 1, 0]),
    )
    def claim(self, worker: str, free_kv: int, free_slots: int) -> Any:
        nonce = f"n{next(self.nonces)}"
        claim = self._claim(worker, nonce, free_kv, free_slots)
        return multiple() if isinstance(claim, Wait) else (claim, worker, nonce)

    @rule(target=claims, worker=st.sampled_from(WORKERS), frames=st.integers(min_value=0, max_value=2))
    def claim_and_begin(self, worker: str, frames: int) -> Any:
        nonce = f"n{next(self.nonces)}"
        claim = self._claim(worker, nonce, 800, 4)
        if isinstance(claim, Wait):
            return multiple()
        self.step((claim, worker, nonce), [b"frame"] * frames, 0, 0, 33, 0, True, True, True)
        return claim, worker, nonce

    @rule(
        worker=st.sampled_from(WORKERS),
        tenants=st.lists(st.sampled_from(TENANTS), min_size=1, max_size=4),
        tokens=st.sampled_from([1, 40, 200]),
    )
    def serve_some_from_start_to_end(self, worker: str, tenants: list[str], tokens: int) -> None:
        for tenant in tenants:
            self.enqueue(tenant, 10, 40, 1_000)
            nonce = f"n{next(self.nonces)}"
            claim = self._claim(worker, nonce, 100, 4)
            if isinstance(claim, Claim):
                self.step((claim, worker, nonce), [b"frame"], 0, 0, tokens, 0, True, True, True)
                self.end((claim, worker, nonce), Outcome.OK, 0, 0)

    @rule(target=claims, worker=st.sampled_from(WORKERS), first=st.sampled_from(TENANTS), count=st.integers(2, 3))
    def fill_a_worker(self, worker: str, first: str, count: int) -> Any:
        self.enqueue(first, 10, 40, 1_000)
        nonces = [f"n{next(self.nonces)}" for _ in range(count)]
        claims = [(self._claim(worker, nonce, 800, 4), worker, nonce) for nonce in nonces]
        return multiple(*[held for held in claims if isinstance(held[0], Claim)])

    @rule(held=claims)
    def claim_again_after_a_lost_reply(self, held: tuple[Claim, str, str]) -> None:
        _, worker, nonce = held
        self._claim(worker, nonce, 10_000, 4)

    def _claim(self, worker: str, nonce: str, free_kv: int, free_slots: int) -> Claim | Wait:
        options = {"worker_id": worker, "nonce": nonce, "free_kv_tokens": free_kv, "free_slots": free_slots}
        real = self.run(self.queue.claim(**options))
        assert real == self.model.claim(now_us=self.now_us, **options)
        return real

    @rule(
        held=claims,
        frames=st.lists(st.sampled_from([b"one", b"two", b"x" * 50]), max_size=3),
        shift=st.sampled_from([0, 0, 0, -1, -2, 1]),
        cached=st.sampled_from([0, 0, 5]),
        tokens=st.sampled_from([0, 1, 31, 32, 40]),
        withheld=st.sampled_from([0, 0, 7]),
        progressed=st.booleans(),
        holds=st.booleans(),
        bystander=st.booleans(),
        replayed=st.sampled_from([True, True, False]),
    )
    def step(
        self,
        held: tuple[Claim, str, str],
        frames: list[bytes],
        shift: int,
        cached: int,
        tokens: int,
        withheld: int,
        progressed: bool,
        holds: bool,
        bystander: bool,
        replayed: bool = True,
    ) -> None:
        claim, worker, _ = held
        job = self.model.jobs[claim.ticket.request_id]
        prompt = claim.ticket.prompt_tokens
        completion = job.counts.completion + tokens
        entry = StepEntry(
            request_id=claim.ticket.request_id,
            fence=claim.fence,
            first_seq=max(len(job.log) + 1 + shift, 1),
            frames=frames,
            counts=TokenCounts(prompt=prompt, cached=min(cached, prompt), completion=completion),
            delivered_tokens=max(completion - withheld, 0),
            progressed=progressed,
            ids=[pack_ids([seq, tokens]) for seq in range(len(frames))] if replayed else [],
        )
        holding = [claim.ticket.request_id] if holds else []
        if bystander:
            holding += [rid for rid in self.model.held_by(worker) if rid not in holding]
        self._step(worker, [entry], holding)

    @rule(worker=st.sampled_from(WORKERS), known=st.booleans())
    def heartbeat(self, worker: str, known: bool) -> None:
        self._step(worker, [], self.model.held_by(worker) if known else ["r000"])

    def _step(self, worker: str, entries: list[StepEntry], holding: list[str]) -> None:
        options: dict[str, Any] = {"worker_id": worker, "entries": entries, "holding": holding}
        real, modelled = self.run(self.queue.step(**options)), self.model.step(now_us=self.now_us, **options)
        assert real.stale == modelled.stale
        assert {a.request_id: a.reason for a in real.aborts} == {a.request_id: a.reason for a in modelled.aborts}
        assert len(real.aborts) == len(modelled.aborts)

    @rule(
        held=claims,
        outcome=st.sampled_from([Outcome.OK, Outcome.OK, Outcome.CANCELLED, Outcome.FAILED, Outcome.GUARDRAIL]),
        tokens=st.sampled_from([0, 1, 33]),
        short=st.sampled_from([0, 0, 0, 1]),
    )
    def end(self, held: tuple[Claim, str, str], outcome: Outcome, tokens: int, short: int) -> None:
        claim, worker, _ = held
        job = self.model.jobs[claim.ticket.request_id]
        counts = TokenCounts(prompt=claim.ticket.prompt_tokens, completion=job.counts.completion + tokens)
        options = {
            "request_id": claim.ticket.request_id,
            "fence": claim.fence,
            "last_seq": len(job.log) - short,
            "outcome": outcome,
            "error_code": "",
            "counts": counts,
            "delivered_tokens": counts.completion,
        }
        real = self.run(self._end(worker, options))
        assert real == self.model.end(now_us=self.now_us, **options)

    async def _end(self, worker: str, options: dict[str, Any]) -> str:
        reply = await self.queue._run(
            "end",
            worker,
            options["request_id"],
            options["fence"],
            options["last_seq"],
            options["outcome"].value,
            "stop",
            options["error_code"],
            options["counts"].prompt,
            options["counts"].cached,
            options["counts"].completion,
            options["counts"].reasoning,
            options["delivered_tokens"],
            options["counts"].prompt * 1_000 + options["counts"].completion * 2_000,
            encode(Timings()),
            b"",
            "",
            "",
        )
        return str(reply.decode())

    @rule(ticket=requests)
    def ack(self, ticket: Ticket) -> None:
        rid = ticket.request_id
        real = self.run(self.queue.ack(request_id=rid, final=final_for(rid)))
        assert real == self.model.ack(request_id=rid)

    @rule(ticket=requests, generation=st.sampled_from([None, 1, 2]), reason=st.sampled_from(["cancelled", "revoked"]))
    def cancel(self, ticket: Ticket, generation: int | None, reason: str) -> None:
        options: dict[str, Any] = {"request_id": ticket.request_id, "generation": generation, "reason": reason}
        assert self.run(self.queue.cancel(**options)) == self.model.cancel(now_us=self.now_us, **options)

    @rule(target=requests, tenant=st.sampled_from(TENANTS), look=st.booleans())
    def cancel_or_look_before_the_enqueue(self, tenant: str, look: bool) -> Ticket:
        ticket = ticket_of(f"r{next(self.ids):03}", tenant, 10, 10)
        if look:
            assert self.run(self.queue.look(request_id=ticket.request_id)) is False
            assert self.model.look(request_id=ticket.request_id) is False
        else:
            self.cancel(ticket=ticket, generation=None, reason="cancelled")
        return ticket

    @rule(held=claims)
    def read_ids(self, held: tuple[Claim, str, str]) -> None:
        named = {"request_id": held[0].ticket.request_id, "fence": held[0].fence}
        assert self.run(self.queue.read_ids(**named)) == self.model.read_ids(**named)

    @rule(held=consumes(claims))
    def hand_back(self, held: tuple[Claim, str, str]) -> None:
        claim, worker, _ = held
        rid = claim.ticket.request_id
        real = self.run(self.queue.hand_back(worker_id=worker, request_id=rid, fence=claim.fence))
        assert real == self.model.hand_back(now_us=self.now_us, request_id=rid, fence=claim.fence)

    @rule(worker=st.sampled_from(WORKERS), quiet=st.booleans())
    def lose_the_engine_and_claim_again(self, worker: str, quiet: bool) -> None:
        """What is suspected of the death must run alone: whoever holds nothing takes it, else somebody drains."""
        self.engine_died(worker=worker)
        for other in [worker] if quiet else WORKERS:
            self._claim(other, f"n{next(self.nonces)}", 800, 4)

    @rule(worker=st.sampled_from(WORKERS))
    def engine_died(self, worker: str) -> None:
        fences = {rid: self.model.jobs[rid].fence for rid in self.model.held_by(worker)}
        for _ in range(2):  # the second is a repeat after a lost reply: it finds no fence and counts nothing
            real = self.run(self.queue.engine_died(worker_id=worker, fences=fences))
            assert real == self.model.engine_died(now_us=self.now_us, fences=fences)

    @rule(worker=st.sampled_from(WORKERS))
    def worker_starts_anew(self, worker: str) -> None:
        real = self.run(self.queue.register(worker_id=worker))
        assert real == self.model.register(now_us=self.now_us, worker_id=worker)

    @rule(worker=st.sampled_from(WORKERS))
    def worker_leaves(self, worker: str) -> None:
        self.run(self.queue.leave(worker_id=worker))
        self.model.leave(now_us=self.now_us, worker_id=worker)

    @rule(limit=st.sampled_from([1, 100]))
    def reap(self, limit: int) -> None:
        assert self.run(self.queue.reap(limit=limit)) == self.model.reap(now_us=self.now_us, limit=limit)

    @rule(ms=st.sampled_from([1, 100, 499, 1_000, 2_500, 5_001]))
    def time_passes(self, ms: int) -> None:
        self.now_us += ms * 1000

    @rule(hours=st.sampled_from([1, -1]))
    def clock_jumps(self, hours: int) -> None:
        self.now_us += hours * 3_600_000_000

    @rule()
    def scripts_are_flushed(self) -> None:
        self.run(self.redis.script_flush())

    # What must be equal ---------------------------------------------------------------------------------------------

    @invariant()
    def both_sides_are_equal(self) -> None:
        state = self.run(read_state(self.redis, self.queue, list(self.model.jobs)))
        model = self.model
        lanes = [model.lanes[False], model.lanes[True]]
        assert state["v"] == [lane.v for lane in lanes]
        assert state["seq"] == model.seq
        assert state["pass_v"] == [lane.pass_v for lane in lanes]
        assert state["counters"] == [lane.counters for lane in lanes]
        assert state["act"] == [lane.order() for lane in lanes]
        assert state["lead"] == model.lead
        assert state["warm"] == model.warm
        assert state["alone"] == model.alone
        assert state["loads"] == self._loads()
        assert state["idle"] == model.idle
        assert state["wakes"] == model.wakes
        assert state["unsettled"] == model.unsettled
        assert state["usage"] == model.usage
        queued = [job for job in model.jobs.values() if job.state == JobState.QUEUED]
        assert state["waiting"] == len(queued)
        assert state["waiting_bytes"] == sum(job.size for job in queued)
        assert state["waiting_tokens"] == sum(job.need for job in queued)
        assert state["tombs"] == set(model.tombs)
        assert state["dead"] == model.dead
        for rid, job in model.jobs.items():
            assert state["jobs"][rid] == {
                "state": job.state.value,
                "tenant": job.ticket.tenant_id,
                "generation": str(job.generation),
                "mailboxes": "\n".join(job.mailboxes),
                "attempt": str(job.attempt),
                "fence": job.fence,
                "worker": job.worker,
                "last_seq": str(len(job.log)),
                "prompt": str(job.counts.prompt),
                "cached": str(job.counts.cached),
                "completion": str(job.counts.completion),
                "delivered": str(job.delivered),
                "paid": str(job.paid),
                "spent": str(job.spent),
                "deaths": str(job.deaths),
                "lapses": str(job.lapses),
                "cancel": job.cancel,
                "queue_us": str(job.queue_us),
                "outcome": job.outcome,
                "error": job.error,
                "ids_seq": str(job.ids_seq),
                "writers": "".join(f"{epoch} {last_seq}\n" for epoch, last_seq in job.writers),
            }
            assert state["logs"][rid] == job.log
            assert state["ids"][rid] == job.ids
        running = {rid: job.lease_ms for rid, job in model.jobs.items() if job.state == JobState.RUNNING}
        assert state["lease"] == running

    def _loads(self) -> dict[str, tuple[int, ...]]:
        """What each tenant has running in either class, and waiting: requests, tokens, bytes."""
        loads: dict[str, tuple[int, ...]] = {}
        for job in self.model.jobs.values():
            queued, running = job.state == JobState.QUEUED, job.state == JobState.RUNNING
            parts = (running and not job.batch, running and job.batch, queued, job.need * queued, job.size * queued)
            known = loads.get(job.ticket.tenant_id, (0,) * 5)
            loads[job.ticket.tenant_id] = tuple(a + int(b) for a, b in zip(known, parts, strict=True))
        return {tenant: load for tenant, load in loads.items() if any(load[:3])}

    @invariant()
    def no_request_ends_twice(self) -> None:
        assert len(set(self.model.usage)) == len(self.model.usage)
        ended = {rid for rid, job in self.model.jobs.items() if job.state in (JobState.ENDED, JobState.SETTLED)}
        assert ended == set(self.model.usage)


def drive(machine: type[PoolMachine], url: str, *, examples: int) -> None:
    with asyncio.Runner() as runner:
        redis = open_redis(url)
        try:
            run_state_machine_as_test(
                lambda: machine(runner, redis),
                settings=settings(
                    max_examples=examples,
                    stateful_step_count=40,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            runner.run(redis.aclose(close_connection_pool=True))


class TestScripts:
    def test_do_what_the_model_does_under_any_order_of_calls(self, valkey_url: str) -> None:
        drive(PoolMachine, valkey_url, examples=25)

    def test_do_so_on_a_cluster_whose_pools_are_on_any_node(self, cluster: Cluster) -> None:
        cluster.empty()
        drive(PoolMachine, cluster.url_of("any"), examples=10)
