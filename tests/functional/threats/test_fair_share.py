"""T35, gaming the fair share: many keys, tiny and huge requests mixed, storms of cancels. The share is the tenant's."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from redis.asyncio import Redis

from contracts.jobs import Claim, Timings
from contracts.outcomes import Outcome
from contracts.tokens import TokenCounts
from fairqueue.policy import QueueBounds, input_service, output_service
from fairqueue.queue import FairQueue
from stores.system import mint_nonce
from tests.factories.jobs import make_ticket

CLAIMS = 300
HONEST = (1_000, 250)  # prompt and output tokens of each of its requests
WAITING = 12  # of each tenant at any time


class Contest:
    """One worker of one place, and tenants that always have requests waiting."""

    def __init__(self, redis: Redis) -> None:
        self.queue = FairQueue(redis, "contest", QueueBounds(), now_us=lambda: self.now_us)
        self.now_us = 1_800_000_000_000_000
        self.dice = random.Random(35)
        self.waiting: dict[str, list[str]] = {"gamer": [], "honest": []}
        self.served: Counter[str] = Counter()
        self._count = 0

    async def fill(self, tenant: str, size: tuple[int, int]) -> None:
        prompt, output = size
        self._count += 1
        ticket = make_ticket(
            f"r{self._count}", tenant_id=tenant, api_key_id=f"key-{self._count % 40}", pool="contest",
            prompt_tokens=prompt, max_tokens=output,
        )  # fmt: skip
        far = self.now_us // 1000 + 600_000
        await self.queue.enqueue(
            ticket, mailbox="", enqueue_deadline_ms=far, weight_milli=1000, queued_max=1_000, expires_at_ms=far
        )
        self.waiting[tenant].append(ticket.request_id)

    async def cancel_some(self, tenant: str, share: float) -> None:
        for request_id in [one for one in self.waiting[tenant] if self.dice.random() < share]:
            await self.queue.cancel(request_id=request_id, generation=None, reason="cancelled")
            self.waiting[tenant].remove(request_id)

    async def serve_one(self) -> None:
        claim = await self.queue.claim(worker_id="w", nonce=mint_nonce(), free_kv_tokens=10**6, free_slots=1)
        assert isinstance(claim, Claim)
        ticket = claim.ticket
        counts = TokenCounts(prompt=ticket.prompt_tokens, completion=ticket.max_tokens)
        self.now_us += 1_000_000
        assert await self.queue.end(
            worker_id="w", request_id=ticket.request_id, fence=claim.fence, last_seq=0, outcome=Outcome.FAILED,
            finish_reason="", error_code="engine_error", counts=counts, delivered_tokens=0, timings=Timings(),
        )  # fmt: skip
        self.waiting[ticket.tenant_id].remove(ticket.request_id)
        self.served[ticket.tenant_id] += input_service(counts) + output_service(counts.completion)


GAMES = {
    "many keys": (lambda dice: HONEST, 0.0),
    "tiny and huge mixed": (lambda dice: (1, 1) if dice.random() < 0.5 else (4_000, 2_000), 0.0),
    "a storm of cancels": (lambda dice: HONEST, 0.3),
    "all of them": (lambda dice: (1, 1) if dice.random() < 0.5 else (4_000, 2_000), 0.3),
}


class TestFairShare:
    @pytest.mark.parametrize("game", GAMES)
    async def test_t35_of_a_tenant_that_games_it_is_still_one_share(self, redis: Redis, game: str) -> None:
        size_of, cancels = GAMES[game]
        contest = Contest(redis)
        for turn in range(CLAIMS):
            while len(contest.waiting["gamer"]) < WAITING:
                await contest.fill("gamer", size_of(contest.dice))
            while len(contest.waiting["honest"]) < WAITING:
                await contest.fill("honest", HONEST)
            await contest.serve_one()
            if cancels and turn % 5 == 0:
                await contest.cancel_some("gamer", cancels)
        share = contest.served["gamer"] / contest.served.total()
        assert 0.475 <= share <= 0.525
