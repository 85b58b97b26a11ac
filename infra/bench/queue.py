"""Bench `queue`: what the fair queue does a second on one store, how soon an idle worker has work, what waiting costs.

Called by `manage.py bench queue`, on a Valkey of its own, started as `make up` starts one (append-only file, synced
every second), from one client process. Parts:

- cycles: enqueue → claim → 3 ticks → end → ack, with as many tenants waiting as the case says. Workers step as real
  ones do: one `step` for all that runs in them. The sizes take turns, so that they meet the same moods of the machine.
- peer: the same cycle on a bare Streams consumer group by the same client with as many calls: no fairness, no fence,
  no lease, no bound, no record of use. What the promises cost.
- wake: a worker sleeps in its blocking pop, a request is queued; the time until the worker holds it, both calls in it.
- idle (`idle`): the same among 10,000 workers that sleep, and what these cost the store while nothing happens.
- memory: what the store grows by for each request that waits.

Invariant: a claim, a step or an end that does not do what the cycle needs fails the run.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from contracts.jobs import Claim, Endpoint, Ticket, Timings
from contracts.money import PriceCard
from contracts.outcomes import Outcome
from contracts.tenancy import ServiceClass
from contracts.tokens import TokenCounts
from contracts.wire import encode
from fairqueue.messages import Final, StepEntry
from fairqueue.queue import FairQueue, QueueBounds
from infra.bench import idle
from infra.bench.output import Measure
from infra.bench.stats import describe, median, percentile
from stores.redis import Client

NAME = "queue"
TENANTS = (10, 1_000, 100_000)
CYCLES_AIM = 1_500.0
FLAT_AIM = 1.3
WAKE_P99_AIM_MS = 2.0
PEER = "streams consumer group"
TICKS = 3
TICK_TOKENS = 32
FRAME = b"f" * 120
FRAMES_A_TICK = 4
BODY = b"b" * 400
CALL_SECONDS = 30.0
BOUNDS = QueueBounds(
    queued_total_max=10**6,
    queued_bytes_max=2**40,
    queued_tokens_max=2**40,
    tenant_bytes_max=2**40,
    tenant_tokens_max=2**40,
)
_MAILBOX = "w:mb:bench"
_PRICE = PriceCard(card_id="bench", currency="EUR", input_nano=1, cached_nano=1, output_nano=1)

# The peer's four calls. KEYS 1 stream | 2 log.
_PEER_ADD = "return redis.call('XADD', KEYS[1], '*', 'ticket', ARGV[1])"
_PEER_CLAIM = "return redis.call('XREADGROUP', 'GROUP', 'g', ARGV[1], 'COUNT', 1, 'STREAMS', KEYS[1], '>')"
_PEER_TICK = "redis.call('RPUSH', KEYS[2], unpack(ARGV, 2)) return redis.call('PUBLISH', ARGV[1], ARGV[2])"
_PEER_ACK = """redis.call('XACK', KEYS[1], 'g', ARGV[1]) redis.call('XDEL', KEYS[1], ARGV[1])
redis.call('PEXPIRE', KEYS[2], 600000) return redis.call('PUBLISH', ARGV[2], ARGV[3])"""


class WrongAnswer(Exception):
    """The queue did not do what the cycle needs; the text says which call answered what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do. `cycles` in each round of each size; a first round warms up and is not measured."""

    cycles: int = 2_000
    rounds: int = 5
    workers: int = 4
    slots: int = 8
    wakes: int = 500
    idle_workers: int = 10_000
    idle_seconds: float = 10.0
    queued: int = 10_000

    @property
    def steps(self) -> int:
        """How many parts the plan has, for the progress bar."""
        return len(TENANTS) + (1 + self.rounds) * (len(TENANTS) + 1) + 3


@dataclass(slots=True, kw_only=True)
class Found:
    """All of a whole run: cycles a second by size and round, the peer's by round, wakes in seconds, bytes a request."""

    plan: Plan
    cycles: dict[int, list[float]] = field(default_factory=lambda: {tenants: [] for tenants in TENANTS})
    peer: list[float] = field(default_factory=list)
    wakes: list[float] = field(default_factory=list)
    idle: idle.Idle | None = None
    bytes_each: float = 0.0


def ticket_of(request_id: str, tenant: str) -> Ticket:
    return Ticket(
        request_id=request_id, tenant_id=tenant, project_id="p", api_key_id="k", pool="bench", model="m",
        endpoint=Endpoint.CHAT, body=BODY, stream=True, include_usage=False, prompt_tokens=100,
        max_tokens=TICKS * TICK_TOKENS, choices=1, cache_salt="s", price=_PRICE, policy=None,
        service_class=ServiceClass.INTERACTIVE, admitted_at_ms=0, edge_us=0, guard_us=0, evaluation_log=False,
    )  # fmt: skip


def final_of(request_id: str) -> Final:
    return Final(
        request_id=request_id, outcome=Outcome.OK, finish_reason="stop", error_code="", error_message="", status=200,
        counts=TokenCounts(prompt=100, completion=TICKS * TICK_TOKENS), cost_nano=0, currency="EUR", attempt=1,
        timings=Timings(),
    )  # fmt: skip


class Side:
    """One pool, with a request of each tenant waiting behind those that are served."""

    def __init__(self, redis: Client, *, tenants: int, pool: str = "") -> None:
        self.queue = FairQueue(redis, pool or f"bench{tenants}", BOUNDS)
        self._names = (f"tenant{number % tenants}" for number in count())

    async def enqueue(self) -> None:
        now_ms = time.time_ns() // 1_000_000
        await self.queue.enqueue(
            ticket_of(str(uuid.uuid4()), next(self._names)),
            mailbox=_MAILBOX,
            enqueue_deadline_ms=now_ms + 60_000,
            weight_milli=1_000,
            queued_max=10**6,
            expires_at_ms=now_ms + 3_600_000,
        )

    async def fill(self, requests: int, *, at_once: int = 64) -> None:
        for start in range(0, requests, at_once):
            async with asyncio.TaskGroup() as tasks:
                for _ in range(min(at_once, requests - start)):
                    tasks.create_task(self.enqueue())

    async def claim(self, worker: str) -> Claim:
        """Raises WrongAnswer when nothing waits."""
        claim = await self.queue.claim(worker_id=worker, nonce=uuid.uuid4().hex, free_kv_tokens=10**9, free_slots=1_000)
        if not isinstance(claim, Claim):
            raise WrongAnswer(f"claim: {claim}")
        return claim

    async def serve(self, worker: str, slots: int) -> None:
        """`slots` cycles on one worker: as many come in as it takes, and all of them step together."""
        async with asyncio.TaskGroup() as tasks:
            claims = [tasks.create_task(self._enter(worker)) for _ in range(slots)]
        running = [claim.result() for claim in claims]
        holding = [claim.ticket.request_id for claim in running]
        for tick in range(TICKS):
            entries = [_entry(claim, tick) for claim in running]
            reply = await self.queue.step(worker_id=worker, entries=entries, holding=holding)
            if reply.aborts or reply.stale:
                raise WrongAnswer(f"step: {reply}")
        async with asyncio.TaskGroup() as tasks:
            for claim in running:
                tasks.create_task(self._leave(worker, claim))

    async def _enter(self, worker: str) -> Claim:
        await self.enqueue()
        return await self.claim(worker)

    async def _leave(self, worker: str, claim: Claim) -> None:
        tokens, rid = TICKS * TICK_TOKENS, claim.ticket.request_id
        ended = await self.queue.end(
            worker_id=worker, request_id=rid, fence=claim.fence, last_seq=TICKS * FRAMES_A_TICK, outcome=Outcome.OK,
            finish_reason="stop", error_code="", counts=TokenCounts(prompt=100, completion=tokens),
            delivered_tokens=tokens, timings=Timings(),
        )  # fmt: skip
        if not ended or not await self.queue.ack(request_id=rid, final=final_of(rid)):
            raise WrongAnswer(f"end: {ended}, or an ack with nothing to do")


class PeerSide:
    """The same cycle without the promises."""

    def __init__(self, redis: Client) -> None:
        self._redis = redis

    async def prepare(self) -> None:
        await self._redis.xgroup_create("bench-peer", "g", mkstream=True)

    async def serve(self, worker: str, slots: int) -> None:
        async with asyncio.TaskGroup() as tasks:
            entered = [tasks.create_task(self._enter(worker)) for _ in range(slots)]
        ids = [task.result() for task in entered]
        frames = [FRAME] * (FRAMES_A_TICK * slots)
        for _ in range(TICKS):
            await self._call(_PEER_TICK, worker, _MAILBOX, *frames)
        async with asyncio.TaskGroup() as tasks:
            for entry in ids:
                final = encode(final_of(worker))
                tasks.create_task(self._call(_PEER_ACK, worker, entry, _MAILBOX, final))
                tasks.create_task(self._call("return 1", worker))  # the queue's `end` is a call of its own

    async def _enter(self, worker: str) -> bytes:
        await self._call(_PEER_ADD, worker, encode(ticket_of(str(uuid.uuid4()), "tenant")))
        [[_, [[entry, _]]]] = await self._call(_PEER_CLAIM, worker, worker)
        return bytes(entry)

    async def _call(self, text: str, worker: str, *args: str | bytes) -> Any:
        return await self._redis.run_script(text, keys=("bench-peer", f"bench-out:{worker}"), args=args)


async def run(*, redis: Client, plan: Plan, advance: Callable[[int], None]) -> Found:
    """The whole plan on an empty store. Raises WrongAnswer, redis.exceptions.RedisError."""
    found = Found(plan=plan)
    found.bytes_each = await _memory(redis, plan.queued)
    advance(1)
    sides = {tenants: Side(redis, tenants=tenants) for tenants in TENANTS}
    peer = PeerSide(redis)
    await peer.prepare()
    for tenants, side in sides.items():
        await side.fill(tenants)
        advance(1)
    for number in range(-1, plan.rounds):
        for tenants, side in sides.items():
            rate = await _round(side, plan)
            advance(1)
            if number >= 0:
                found.cycles[tenants].append(rate)
        rate = await _round(peer, plan)
        advance(1)
        if number >= 0:
            found.peer.append(rate)
    found.wakes = await _wakes(redis, plan.wakes)
    advance(1)
    crowded = Side(redis, pool="crowded", tenants=1)
    found.idle = await idle.measure(
        redis, crowded.queue, workers=plan.idle_workers, seconds=plan.idle_seconds, samples=plan.wakes,
        enqueue=crowded.enqueue,
    )  # fmt: skip
    advance(1)
    return found


async def _round(side: Side | PeerSide, plan: Plan) -> float:
    """Cycles a second."""
    turns = max(plan.cycles // (plan.workers * plan.slots), 1)

    async def work(worker: str) -> None:
        for _ in range(turns):
            await side.serve(worker, plan.slots)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for number in range(plan.workers):
            tasks.create_task(work(f"worker{number}"))
    return turns * plan.workers * plan.slots / (time.perf_counter() - began)


async def _memory(redis: Client, requests: int) -> float:
    side = Side(redis, tenants=100)
    await side.fill(100)  # the scripts are loaded, the lists begun
    before = int((await redis.info("memory"))["used_memory"])
    await side.fill(requests)
    return (int((await redis.info("memory"))["used_memory"]) - before) / requests


async def _wakes(redis: Client, samples: int) -> list[float]:
    """Seconds from the call that queues to the claim in the hands of the worker that slept."""
    side, found = Side(redis, tenants=1), []
    for _ in range(samples):
        waiting = await side.queue.claim(worker_id="idle", nonce=uuid.uuid4().hex, free_kv_tokens=1, free_slots=1)
        if isinstance(waiting, Claim):
            raise WrongAnswer(f"claim on an empty pool: {waiting}")
        async with asyncio.timeout(CALL_SECONDS), asyncio.TaskGroup() as tasks:
            tasks.create_task(_sleep(side.queue))
            while not int((await redis.info("clients"))["blocked_clients"]):  # noqa: ASYNC110 - only the store knows
                await asyncio.sleep(0)
            began = time.perf_counter()
            await side.enqueue()
        claim = await side.claim("idle")
        found.append(time.perf_counter() - began)
        await side.queue.engine_died(worker_id="idle", fences={claim.ticket.request_id: claim.fence})
        again = await side.claim("idle")
        await side.queue.engine_died(worker_id="idle", fences={again.ticket.request_id: again.fence})
    return found


async def _sleep(queue: FairQueue) -> None:
    if not await queue.wait_wake(worker_id="idle", timeout_s=CALL_SECONDS):
        raise WrongAnswer("a worker slept on beside a request")


def _entry(claim: Claim, tick: int) -> StepEntry:
    tokens = (tick + 1) * TICK_TOKENS
    return StepEntry(
        request_id=claim.ticket.request_id,
        fence=claim.fence,
        first_seq=tick * FRAMES_A_TICK + 1,
        frames=[FRAME] * FRAMES_A_TICK,
        counts=TokenCounts(prompt=100, completion=tokens),
        delivered_tokens=tokens,
        progressed=True,
    )


def measures(found: Found) -> list[Measure]:
    """The lines of a whole run. Raises statistics.StatisticsError, ValueError when nothing was measured."""
    peer = median(found.peer)
    lines = [
        Measure(
            bench=NAME, case={"tenants": tenants}, metric="cycles_per_s", value=median(found.cycles[tenants]),
            unit="1/s", peer=PEER, peer_value=peer,
        )
        for tenants in TENANTS
    ]  # fmt: skip
    assert found.idle is not None
    case = {"idle_workers": found.idle.workers}
    return [
        *lines,
        Measure(bench=NAME, case={"idle_workers": 1}, metric="wakeup_p99_ms", value=_p99_ms(found.wakes), unit="ms"),
        Measure(bench=NAME, case=case, metric="wakeup_p99_ms", value=_p99_ms(found.idle.wakes), unit="ms"),
        Measure(bench=NAME, case=case, metric="idle_cpu", value=found.idle.cpu, unit="cores"),
        Measure(
            bench=NAME, case={"body_bytes": len(BODY)}, metric="bytes_per_queued_request", value=found.bytes_each,
            unit="bytes",
        ),
    ]  # fmt: skip


def _p99_ms(seconds: Sequence[float]) -> float:
    return percentile([each * 1_000 for each in seconds], percent=99)


def flatness(found: Found) -> float:
    """The rate of the quickest size over that of the slowest."""
    rates = [median(rates) for rates in found.cycles.values()]
    return max(rates) / min(rates)


def verdict_rows(found: Found, lines: Sequence[Measure]) -> list[tuple[str, str]]:
    """Spread of the rounds, and aims against what was seen, in words."""
    plan = found.plan
    rows = [(f"{tenants} tenants", describe(rates, unit="1/s")) for tenants, rates in found.cycles.items()]
    rows.append((PEER, describe(found.peer, unit="1/s")))
    rows.append(("wake to claim", describe([seconds * 1_000 for seconds in found.wakes], unit="ms", digits=3)))
    rows.append(("load", f"{plan.workers} workers of {plan.slots} slots, {TICKS} steps a request, one client process"))
    for line in lines:
        if line.metric == "cycles_per_s":
            name = f"cycles_per_s tenants={line.case['tenants']}"
            rows.append((name, _verdict(line.value, CYCLES_AIM, line.value >= CYCLES_AIM)))
        elif line.metric == "wakeup_p99_ms":
            name = f"{line.metric} idle_workers={line.case['idle_workers']}"
            rows.append((name, _verdict(line.value, WAKE_P99_AIM_MS, line.value <= WAKE_P99_AIM_MS)))
        elif line.metric == "idle_cpu":
            name = f"CPU of the store, {line.case['idle_workers']} idle workers"
            rows.append((name, f"{line.value:.4f} cores"))
    spread = flatness(found)
    rows.append(("quickest over slowest", _verdict(spread, FLAT_AIM, spread <= FLAT_AIM)))
    return rows


def _verdict(value: float, aim: float, met: bool) -> str:  # noqa: FBT001 - said in one place
    return f"{value:,.3f}, aim {aim:g}: {'met' if met else 'missed'}"
