"""A gateway on real Valkey with a worker small enough to drive by hand: it claims, steps and ends as PROTOCOL says."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
from redis.asyncio import Redis

from billing.clickhouse.shapes import RequestRow, UsageBucket, UsagePage, UsageResult
from billing.rating.rate import cost
from contracts.errors import InvalidRequest, NotFound, Unavailable
from contracts.jobs import Claim, Endpoint, Ticket, Timings
from contracts.models import ModelCard
from contracts.money import PriceCard
from contracts.outcomes import Outcome
from contracts.tenancy import PolicyRef, ServiceClass, TenantContext
from contracts.tokens import TokenCounts
from fairqueue.messages import Abort, StepEntry, pack_ids
from fairqueue.queue import FairQueue
from gateway.services import Epochs, ServedModel, UsageQuery
from gateway.settlement import told
from safety.policy import CompiledPolicy
from stores.system import SystemClock, mint_nonce
from tenants.auth.keys import digest, mint
from tenants.limits.buckets import Limits
from tenants.limits.holds import HoldHint
from workers.registration import Heartbeat, publish_heartbeat

PEPPER = b"p" * 32
MODEL = "toy-1"
POOL = "toy-pool"
WORKER = "w1"
PATIENCE_SECONDS = 20.0
PRICE = PriceCard(card_id="pc1", currency="USD", input_nano=1_000, cached_nano=100, output_nano=2_000)
CARD = ModelCard(
    model=MODEL, pool=POOL, repository="example/toy", revision="abc", weights_sha256="00", tokenizer_sha256="11",
    dtype="bfloat16", kv_cache_dtype="auto", layers=2, heads=4, kv_heads=2, head_size=16, vocabulary=300,
    context_tokens=512, block_tokens=16, engine="scripted", engine_version="1", created_at_ms=1_800_000_000_000,
)  # fmt: skip
CONTEXT = TenantContext(
    tenant_id="acme", tenant_name="Acme", project_id="acme-project", api_key_id="acme-key", key_epoch=1, tenant_epoch=1,
    scopes=frozenset({"inference"}), allowed_models=None, limits=(), queued_max=100, max_tokens_default=64,
    max_tokens_cap=None, weight_milli=1000, timezone="UTC", currency="USD", policy=None, evaluation_log=False,
)  # fmt: skip
MALLORY = replace(CONTEXT, tenant_id="mallory", tenant_name="Mallory", project_id="m-project", api_key_id="m-key")


@dataclass
class Directory:
    """The database's part: keys, epochs, prices, policies, models and reports, as a test sets them."""

    served: ServedModel
    contexts: dict[str, TenantContext] = field(default_factory=dict)
    price: PriceCard | None = PRICE
    batch_price: PriceCard | None = None
    policy: CompiledPolicy | None = None
    rows: dict[tuple[str, str], RequestRow] = field(default_factory=dict)
    asked: list[UsageQuery] = field(default_factory=list)
    revoked: set[str] = field(default_factory=set)  # ids of keys, whatever Redis knows of it
    away: bool = False

    def issue(self, context: TenantContext) -> str:
        """A new key in plain text for a context."""
        key = mint()
        self.contexts[digest(key, PEPPER)] = context
        return key

    async def load_context(self, digests: Sequence[str]) -> TenantContext | None:
        if self.away:
            raise Unavailable("the database is away")
        found = next((self.contexts[digest] for digest in digests if digest in self.contexts), None)
        return None if found is None or found.api_key_id in self.revoked else found

    async def load(self, *, tenant_id: str) -> Epochs:
        mine = [context for context in self.contexts.values() if context.tenant_id == tenant_id]
        keys = {context.api_key_id: context.key_epoch for context in mine}
        keys |= {key_id: -(keys[key_id] + 1) for key_id in self.revoked & keys.keys()}
        return Epochs(keys=keys, tenant=mine[0].tenant_epoch)

    async def card(self, *, tenant_id: str, model: str, service_class: ServiceClass) -> PriceCard | None:
        return self.batch_price if service_class is ServiceClass.BATCH else self.price

    async def get(self, model: str | PolicyRef) -> Any:
        if isinstance(model, PolicyRef):
            return self.policy
        if model != MODEL:
            raise NotFound(f"no model {model!r}", param="model", code="model_not_found")
        return self.served

    async def list(self) -> list[ServedModel]:
        return [self.served]

    async def buckets(self, *, tenant_id: str, query: UsageQuery) -> UsagePage:
        if query.bucket_width not in ("1m", "1h", "1d"):
            raise InvalidRequest("bucket_width: must be 1m, 1h or 1d", param="bucket_width")
        self.asked.append(query)
        result = UsageResult(
            input_tokens=10, cached_tokens=4, output_tokens=5, reasoning_tokens=0, requests=1, cost_nano=16_400,
            currency="USD", project_id=f"{tenant_id}-project",
        )  # fmt: skip
        bucket = UsageBucket(start_s=query.start_ms // 1000, end_s=query.end_ms // 1000, results=(result,))
        return UsagePage(buckets=(bucket,), next_page=None)

    async def request(self, *, tenant_id: str, request_id: str) -> RequestRow | None:
        return self.rows.get((tenant_id, request_id))


def chat_frames(ticket: Ticket, texts: Sequence[str], *, finish: str = "stop") -> list[bytes]:
    """The frames of one choice, the last with its finish reason."""
    chat = ticket.endpoint is Endpoint.CHAT
    head = {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{ticket.request_id}",
        "object": "chat.completion.chunk" if chat else "text_completion",
        "created": ticket.admitted_at_ms // 1000,
        "model": ticket.model,
    }
    usage = {"usage": None} if ticket.include_usage else {}

    def choice(text: str, reason: str | None) -> dict[str, Any]:
        piece = {"delta": {"content": text}} if chat else {"text": text}
        return {"index": 0, **piece, "logprobs": None, "finish_reason": reason}

    frames = [choice(text, None) for text in texts] + [choice("", finish)]
    return [orjson.dumps({**head, "choices": [one], **usage}) for one in frames]


@dataclass
class HandWorker:
    """Claims one request at a time and does with it what the test says."""

    redis: Redis
    queue: FairQueue
    limits: Limits
    holding: list[str] = field(default_factory=list)

    async def beat(self, *, state: str = "ready") -> None:
        beat = Heartbeat(
            worker_id=WORKER, pool=POOL, model=MODEL, engine="scripted", pid=1, state=state, running=0,
            free_kv_tokens=100_000, free_slots=8, at_ms=SystemClock().now_ms(), attempt_log_failures=0,
            evaluation_logs_dropped=0,
        )  # fmt: skip
        await publish_heartbeat(self.redis, beat)

    async def claim(self) -> Claim:
        """The next request; waits for one."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                claim = await self.queue.claim(
                    worker_id=WORKER, nonce=mint_nonce(), free_kv_tokens=100_000, free_slots=8
                )
                if isinstance(claim, Claim):
                    self.holding.append(claim.ticket.request_id)
                    assert await self.limits.start(
                        tenant_id=claim.ticket.tenant_id,
                        request_id=claim.ticket.request_id,
                        fence=claim.fence,
                        attempt=claim.attempt,
                    )
                    return claim
                await self.queue.wait_wake(worker_id=WORKER, timeout_s=1)

    async def step(self, claim: Claim, frames: list[bytes], *, first_seq: int, ids: bool = False) -> list[Abort]:
        """`ids`: each frame comes with a token id, so that another attempt may go on."""
        entries = [
            StepEntry(
                request_id=claim.ticket.request_id,
                fence=claim.fence,
                first_seq=first_seq,
                frames=frames,
                counts=TokenCounts(prompt=claim.ticket.prompt_tokens, completion=first_seq + len(frames) - 1),
                delivered_tokens=first_seq + len(frames) - 1,
                progressed=True,
                ids=[pack_ids([7]) for _ in frames] if ids else [],
            )
        ]
        reply = await self.queue.step(worker_id=WORKER, entries=entries, holding=self.holding)
        return reply.aborts

    async def aborted(self, claim: Claim) -> Abort:
        """Steps without output until the queue says to abort."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                reply = await self.queue.step(worker_id=WORKER, entries=[], holding=self.holding)
                mine = [abort for abort in reply.aborts if abort.request_id == claim.ticket.request_id]
                if mine:
                    return mine[0]
                await asyncio.sleep(0.02)

    async def end(
        self,
        claim: Claim,
        *,
        last_seq: int,
        outcome: Outcome = Outcome.OK,
        finish: str = "stop",
        error: str = "",
        refused: str = "",
    ) -> None:
        """End, settle, ack. `refused`: the field that the engine found wrong."""
        ticket = claim.ticket
        counts = TokenCounts(prompt=ticket.prompt_tokens, completion=last_seq)
        assert await self.queue.end(
            worker_id=WORKER, request_id=ticket.request_id, fence=claim.fence, last_seq=last_seq, outcome=outcome,
            finish_reason=finish, error_code=error, counts=counts, delivered_tokens=last_seq,
            timings=Timings(edge_us=ticket.edge_us, queue_us=claim.queue_us, ttft_us=1_000, total_us=2_000),
            error_param=refused,
        )  # fmt: skip
        self.holding.remove(ticket.request_id)
        records = await self.queue.unsettled(older_than_ms=0, limit=100)
        record = next(record for record in records if record.request_id == ticket.request_id)
        settled = await self.limits.settle(
            tenant_id=ticket.tenant_id, request_id=ticket.request_id, counts=counts,
            cost_nano=cost(ticket.price, counts).total_nano, outcome=outcome.value,
            hint=HoldHint(
                project_id=ticket.project_id, api_key_id=ticket.api_key_id, admitted_at_ms=ticket.admitted_at_ms
            ),
        )  # fmt: skip
        await self.queue.ack(request_id=ticket.request_id, final=told(record, cost_nano=settled.cost_nano))

    async def refuse(self) -> Claim:
        """One request whose `seed` the engine does not take."""
        claim = await self.claim()
        await self.end(claim, last_seq=0, outcome=Outcome.FAILED, finish="", error="invalid_value", refused="seed")
        return claim

    async def serve(self, texts: Sequence[str], *, finish: str = "stop") -> Claim:
        """One whole request: a step for each text, then its end."""
        claim = await self.claim()
        frames = chat_frames(claim.ticket, texts, finish=finish)
        for seq, one in enumerate(frames, start=1):
            await self.step(claim, [one], first_seq=seq)
        await self.end(claim, last_seq=len(frames), finish=finish)
        return claim
