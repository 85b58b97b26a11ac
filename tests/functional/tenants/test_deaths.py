"""Clients and processes that die at each await of admission and answer, one await after the other, on real Valkey.

Whatever dies where: no hold stays open after the settler's round, there is at most one usage record of a request, the
counters are what that record says and nothing else, and who was refused is in none of them.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from redis.asyncio import Redis

from billing.rating.rate import cost
from contracts.jobs import Claim, Timings, UsageRecord
from contracts.outcomes import Outcome
from contracts.tenancy import Limit, Metric, PolicyRef, Scope, TenantContext
from contracts.tokens import TokenCounts
from fairqueue.messages import usage_from_stream
from gateway.edge.app import InferenceApp
from gateway.settlement import Sweeper
from safety.policy import CompiledPolicy
from stores.system import mint_nonce
from tenants.limits import keys
from tenants.limits.policy import GRAINS
from tests.functional.gateway.cast import CONTEXT, MODEL, POOL, WORKER, chat_frames
from tests.functional.gateway.conftest import Gateway, gateway, http_protocol, kept, receipts, settings, tokenizer
from tests.functional.tenants.dying import Call, Death

__all__ = ["gateway", "http_protocol", "kept", "receipts", "settings", "tokenizer"]

PATH = "/v1/chat/completions"
TEXTS = ("one", "two")
PATIENCE_SECONDS = 30.0
STEPS_MAX = 400  # far above what a call has: the loop ends by itself before
EVER_MS = 120_000  # every deadline of a hold is over by then
LIMITS = (
    Limit(scope=Scope.KEY, metric=Metric.REQUESTS_PER_MINUTE, cap=600),
    Limit(scope=Scope.TENANT, metric=Metric.INPUT_TOKENS_PER_MINUTE, cap=60_000),
    Limit(scope=Scope.PROJECT, metric=Metric.OUTPUT_TOKENS_PER_MINUTE, cap=60_000),
    Limit(scope=Scope.TENANT, metric=Metric.CONCURRENT_REQUESTS, cap=9),
    Limit(scope=Scope.KEY, metric=Metric.QUEUED_REQUESTS, cap=9),
    Limit(scope=Scope.TENANT, metric=Metric.TOKENS_PER_DAY, cap=10**9, model=MODEL),
    Limit(scope=Scope.TENANT, metric=Metric.SPEND_LIFETIME, cap=10**12),
)


@dataclass(frozen=True)
class Case:
    """What is asked, by whom. `refused`: no such call is ever let in. `keyed`: with an Idempotency-Key, and retried."""

    stream: bool = True
    text: str = "Hello"
    action: str = ""
    changes: dict[str, Any] = field(default_factory=dict)
    refused: bool = False
    keyed: bool = False


CASES = {
    "stream": Case(),
    "whole": Case(stream=False),
    "keyed": Case(keyed=True),
    "refused by the queue": Case(changes={"queued_max": 0}, refused=True),
    "refused by the guard": Case(text="say ab", action="block", refused=True),
    "grown by the guard": Case(text="say ab", action="redact"),
}


@dataclass
class Stage:
    """A gateway, its settler, and a worker that serves what is queued until the test ends."""

    gateway: Gateway
    sweeper: Sweeper
    number: int = 0

    @property
    def redis(self) -> Redis:
        return self.gateway.services.redis

    async def work(self) -> None:
        queue = self.gateway.queue
        while True:
            claim = await queue.claim(worker_id=WORKER, nonce=mint_nonce(), free_kv_tokens=100_000, free_slots=8)
            if isinstance(claim, Claim):
                await self.serve(claim)
            else:
                await queue.wait_wake(worker_id=WORKER, timeout_s=1)

    async def serve(self, claim: Claim) -> None:
        """As a worker does it; what its hold, or a cancellation, stops is ended as cancelled."""
        ticket, worker, limits = claim.ticket, self.gateway.worker, self.gateway.services.limits
        worker.holding.append(ticket.request_id)
        going = await limits.start(
            tenant_id=ticket.tenant_id, request_id=ticket.request_id, fence=claim.fence, attempt=claim.attempt
        )
        frames = chat_frames(ticket, TEXTS)
        for seq, frame in enumerate(frames, start=1):
            if going:
                aborts = await worker.step(claim, [frame], first_seq=seq)
                going = all(abort.request_id != ticket.request_id for abort in aborts)
        log = await self.gateway.queue.read_log(request_id=ticket.request_id, after_seq=0, limit=100)
        last = len(log.frames) if log is not None else 0
        whole = going and last == len(frames)
        await self.gateway.queue.end(
            worker_id=WORKER, request_id=ticket.request_id, fence=claim.fence, last_seq=last,
            outcome=Outcome.OK if whole else Outcome.CANCELLED, finish_reason="stop" if whole else "",
            error_code="" if whole else "request_cancelled", delivered_tokens=last,
            counts=TokenCounts(prompt=ticket.prompt_tokens if last else 0, completion=last),
            timings=Timings(edge_us=ticket.edge_us, queue_us=claim.queue_us, ttft_us=1_000, total_us=2_000),
        )  # fmt: skip
        worker.holding.remove(ticket.request_id)
        await self.sweeper.sweep()  # it settles at once; the settler's own round may come in between, too

    def customer(self, case: Case) -> tuple[TenantContext, str]:
        """A tenant of its own for each call, and its key."""
        self.number += 1
        name = f"mortal-{self.number}"
        policy = None
        if case.action:
            rule = {
                "name": "ban", "kind": "ban_list", "stage": ["prompt"], "action": case.action, "fail": "closed",
                "config": {"words": ["ab"]},
            }  # fmt: skip
            self.gateway.directory.policy = CompiledPolicy.compile({"id": "pol", "version": 1, "rules": [rule]})
            policy = PolicyRef(policy_id="pol", version=1)
        context = replace(
            CONTEXT, tenant_id=name, project_id=f"{name}-p", api_key_id=f"{name}-k", limits=LIMITS, policy=policy,
            **case.changes,
        )  # fmt: skip
        return context, self.gateway.directory.issue(context)

    async def settled(self, tenant_id: str) -> None:
        """Settles and voids until no hold of the tenant is open. Fails when one does not end."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                await self.sweeper.sweep()
                depths = await self.gateway.queue.depths()
                busy = depths.waiting + depths.running or self.gateway.worker.holding
                if not busy and not await self.redis.zcard(keys.holds(tenant_id)):
                    return
                await asyncio.sleep(0.002)

    async def records(self, tenant_id: str) -> list[UsageRecord]:
        entries = await self.redis.xrange(self.gateway.queue.keys.usage)
        found = [usage_from_stream(fields) for _, fields in entries]
        return [record for record in found if record.tenant_id == tenant_id]

    async def counters(self, context: TenantContext) -> dict[Metric, tuple[int, int]]:
        """Used (grains of a bucket, else units) and held, as they are stored."""
        found = {}
        for limit in LIMITS:
            name = keys.counter(
                limit, tenant_id=context.tenant_id, project_id=context.project_id, api_key_id=context.api_key_id
            )
            used, held = await self.redis.hmget(keys.use(context.tenant_id), [f"{name}:u", f"{name}:h"])
            found[limit.metric] = int(used or 0), int(held or 0)
        return found

    async def forget(self, tenant_id: str) -> None:
        """So that later rounds look at their own tenant only."""
        await self.redis.srem(keys.TENANTS, tenant_id)
        await self.redis.xtrim(self.gateway.queue.keys.usage, maxlen=0)


def reference(records: list[UsageRecord]) -> dict[Metric, tuple[int, int]]:
    """The counters that these records and no others make, at a time that stands still."""
    prompt = sum(record.counts.prompt for record in records)
    completion = sum(record.counts.completion for record in records)
    money = sum(cost(record.price, record.counts).total_nano for record in records)
    used = {
        Metric.REQUESTS_PER_MINUTE: len(records) * GRAINS,
        Metric.INPUT_TOKENS_PER_MINUTE: prompt * GRAINS,
        Metric.OUTPUT_TOKENS_PER_MINUTE: completion * GRAINS,
        Metric.CONCURRENT_REQUESTS: 0,
        Metric.QUEUED_REQUESTS: 0,
        Metric.TOKENS_PER_DAY: prompt + completion,
        Metric.SPEND_LIFETIME: money,
    }
    return {metric: (amount, 0) for metric, amount in used.items()}


@pytest.fixture
async def stage(gateway: Gateway) -> AsyncIterator[Stage]:
    async def pools() -> list[str]:
        return [POOL]

    services = gateway.services
    sweeper = Sweeper(
        limits=services.limits, queue_of=services.queue_of, pools=pools, older_than_ms=0, margin_ms=-EVER_MS
    )
    stage = Stage(gateway, sweeper)
    async with _working(stage):
        yield stage


@asynccontextmanager
async def _working(stage: Stage) -> AsyncIterator[None]:
    task = asyncio.ensure_future(stage.work())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def one(stage: Stage, case: Case, *, death: Death | None, at: int) -> Call:
    """One call that dies there, and what the books must say then."""
    services = stage.gateway.services
    services.limits.time_ms = services.clock.now_ms()  # stands still: no bucket drains
    context, key = stage.customer(case)
    document = {"model": MODEL, "messages": [{"role": "user", "content": case.text}], "max_tokens": 5}
    headers = stage.gateway.auth(key) | ({"idempotency-key": "once"} if case.keyed else {})
    app = InferenceApp(services)
    call = Call(PATH, document | {"stream": case.stream}, headers)
    await call.run(app, death=death, at=at)
    await stage.settled(context.tenant_id)
    await check(stage, case, context, [call])
    await call.bury()
    if case.keyed and death is not None:
        again = Call(PATH, document | {"stream": case.stream}, headers)
        await again.run(app, death=None, at=0)
        await stage.settled(context.tenant_id)
        await check(stage, case, context, [call, again])
        assert again.status in (200, 409), again.body
    assert services.mailbox.open_inboxes == 0
    await stage.forget(context.tenant_id)
    return call


async def check(stage: Stage, case: Case, context: TenantContext, calls: list[Call]) -> None:
    records = await stage.records(context.tenant_id)
    assert len({record.request_id for record in records}) == len(records)
    assert len(records) <= len(calls)
    assert await stage.counters(context) == reference(records)
    if case.refused or all(call.status not in (None, 200) for call in calls):
        assert records == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("death", Death)
@pytest.mark.parametrize("name", CASES)
class TestDeathAtEachAwait:
    async def test_t13_leaves_nothing_held_and_charges_what_was_recorded(
        self, stage: Stage, name: str, death: Death
    ) -> None:
        whole = await one(stage, CASES[name], death=None, at=0)
        assert (whole.status == 200) != CASES[name].refused
        for at in range(1, STEPS_MAX):
            call = await one(stage, CASES[name], death=death, at=at)
            if not call.reached:
                break
        assert not call.reached
        assert at > 10  # the body, the key, the pool, the hold, its end, the answer: they were all met
