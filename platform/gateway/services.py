"""Everything the gateway needs, as ports. Built once in `controlplane/wiring.py`; tests build it from real parts.

Invariant: no module of this room opens a connection, reads a clock or loads a model by itself; it takes it from here.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from redis.asyncio import Redis

from billing.clickhouse.shapes import RequestRow, UsagePage
from contracts.clock import Clock
from contracts.models import ModelCard
from contracts.money import PriceCard
from contracts.tenancy import PolicyRef, ServiceClass
from fairqueue.queue import FairQueue
from gateway.kept import KeptRequests
from gateway.pools import PoolWorkers
from gateway.refusals import Refusals
from gateway.revocation import Revocations, Running
from gateway.stream.mailbox import Mailbox
from gateway.surface import limits
from gateway.tokenizer import PromptTokenizer
from safety.engines.pool import ValidatorPool
from safety.policy import CompiledPolicy
from tenants.auth.resolve import Resolver
from tenants.limits.buckets import Limits

START_SECONDS = 5.0
CANCEL_AGAIN_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Knobs of one gateway with their defaults. Sizes that a client can see are in `gateway.surface.limits` instead."""

    origins: tuple[str, ...] = ()  # of browsers, exact or ("*",): CORS and WebSockets; no Origin is always let in
    heartbeat_seconds: float = 10.0
    head_hold_seconds: float = 1.0  # a stream's head waits so long for its first frame, or for the engine's refusal
    body_read_seconds: float = limits.BODY_SECONDS
    admission_seconds: float = 15.0  # to wait for a turn to be admitted
    queue_wait_seconds: float = limits.QUEUE_WAIT_SECONDS  # a job that waited longer ends as expired
    background_wait_seconds: float = limits.BACKGROUND_WAIT_SECONDS  # the same in the background
    background_class: ServiceClass = ServiceClass.INTERACTIVE  # what background requests are queued and billed as
    request_seconds: float = limits.REQUEST_SECONDS  # from the last byte of the request to the final frame
    hold_enqueue_seconds: float = 30.0  # a hold that was not enqueued by then is voided by the settler
    realtime_auth_seconds: float = limits.REALTIME_KEY_SECONDS
    realtime_idle_seconds: float = limits.REALTIME_IDLE_SECONDS
    send_stall_seconds: float = limits.STALL_SECONDS  # one send that the client does not take
    streams_max: int = limits.OPEN_REQUESTS_MAX
    idempotency_ms: int = 24 * 3_600_000
    worker_probe_seconds: float = 1.0
    unavailable_retry_ms: int = 5_000
    trusted_proxies: tuple[str, ...] = ()  # CIDR blocks whose X-Forwarded-For is believed


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model that can be asked for: its configuration on record and its own tokenizer."""

    card: ModelCard
    tokenizer: PromptTokenizer


class Catalogue(Protocol):
    """Served models, cached in the process."""

    async def get(self, model: str) -> ServedModel:
        """Raises contracts.errors.NotFound (code model_not_found)."""

    async def list(self) -> list[ServedModel]:
        """Every served model, in a stable order."""


class Prices(Protocol):
    async def card(self, *, tenant_id: str, model: str, service_class: ServiceClass) -> PriceCard | None:
        """The prices in force now for a request of this class; None = the model has none and is refused."""


class Policies(Protocol):
    async def get(self, ref: PolicyRef) -> CompiledPolicy:
        """Raises contracts.errors.Unavailable when the policy cannot be loaded: the guard fails closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Epochs:
    """The truth about revocation of one tenant, from PostgreSQL."""

    keys: dict[str, int]
    tenant: int


class EpochSource(Protocol):
    async def load(self, *, tenant_id: str) -> Epochs:
        """Read after Redis lost the tenant's epochs. Raises contracts.errors.Unavailable."""


class UsageReports(Protocol):
    """Reports over ClickHouse; both raise contracts.errors.Unavailable when it is away."""

    async def buckets(self, *, tenant_id: str, query: "UsageQuery") -> UsagePage:
        """Raises contracts.errors.InvalidRequest naming the field."""

    async def request(self, *, tenant_id: str, request_id: str) -> RequestRow | None:
        """A metered request of this tenant; None when unknown."""


class Receipts(Protocol):
    """What proves a bill; both raise contracts.errors.Unavailable when who signs, or PostgreSQL, is away."""

    async def receipt(self, *, request_id: str, tenant_id: str) -> dict[str, Any] | None:
        """The signed receipt of this tenant's request; None when it is unknown, or not metered yet."""

    async def keys(self) -> dict[str, bytes]:
        """Key id -> public key of whatever was ever signed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageQuery:
    """GET /v1/usage, parsed; times in milliseconds, half-open."""

    start_ms: int
    end_ms: int
    bucket_width: str = "1d"
    group_by: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    project_ids: tuple[str, ...] = ()
    api_key_ids: tuple[str, ...] = ()
    limit: int | None = None
    page: str | None = None


@dataclass(frozen=True, kw_only=True)
class GatewayServices:
    """The ports of one gateway process. `run` belongs to the server's lifespan."""

    gateway_id: str
    clock: Clock
    redis: Redis
    mailbox: Mailbox
    limits: Limits
    queue_of: Callable[[str], FairQueue]  # by pool name; made on demand, kept
    resolver: Resolver
    epochs: EpochSource
    catalogue: Catalogue
    prices: Prices
    policies: Policies
    usage: UsageReports
    cache_salt_secret: bytes  # stores.secrets.derive(secret, CACHE_SALT)
    kept: KeptRequests | None = None  # None = background requests are not taken
    receipts: Receipts | None = None  # None = this gateway hands out none
    validators: ValidatorPool | None = None  # None = no rule may need one: a policy that does is refused
    settings: GatewaySettings = field(default_factory=GatewaySettings)
    background: tuple[Callable[[], Awaitable[Any]], ...] = ()  # loops that live as long as the server

    async def run(self, *, started: asyncio.Event, stopping: asyncio.Event) -> None:
        """Runs the mailbox and the background loops until `stopping`.

        Sets `started` once the mailbox is subscribed; with Redis away, after a few seconds without it: the gateway then
        answers 503, also on /health/ready, until the subscription stands.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                loops = [tasks.create_task(self.mailbox.run()), tasks.create_task(self.revocations.run())]
                loops += [tasks.create_task(_forever(loop)) for loop in (*self.background, self.refusals.run)]
                with suppress(TimeoutError):
                    async with asyncio.timeout(START_SECONDS):
                        await self.mailbox.subscribed.wait()
                started.set()
                await stopping.wait()
                await _cancelled(loops)
        finally:
            if self.validators is not None:
                await self.validators.close()

    @cached_property
    def workers(self) -> PoolWorkers:
        """Heartbeats by pool, shared by every route of the process."""
        return PoolWorkers(
            self.redis,
            clock=self.clock,
            fresh_seconds=self.settings.worker_probe_seconds,
            retry_after_ms=self.settings.unavailable_retry_ms,
        )

    @cached_property
    def refusals(self) -> Refusals:
        """Why requests were refused, for whoever asks later."""
        return Refusals(self.redis, clock=self.clock)

    @cached_property
    def running(self) -> Running:
        """The open answers of this process and whose they are."""
        return Running()

    @cached_property
    def revocations(self) -> Revocations:
        """What ends them when their key is revoked."""
        return Revocations(
            listen=self.mailbox.listen,
            redis=self.redis,
            limits=self.limits,
            queue_of=self.queue_of,
            resolver=self.resolver,
            refresh_epochs=self.refresh_epochs,
            running=self.running,
        )

    async def refresh_epochs(self, tenant_id: str) -> None:
        """Puts into Redis what PostgreSQL says of a tenant's keys. Raises contracts.errors.Unavailable, RedisError."""
        epochs = await self.epochs.load(tenant_id=tenant_id)
        await self.limits.set_epochs(tenant_id=tenant_id, keys=epochs.keys, tenant_epoch=epochs.tenant)


async def _cancelled(loops: Sequence[asyncio.Task[Any]]) -> None:
    """Again and again: redis-py may swallow a cancellation that comes while it closes a connection."""
    pending = set(loops)
    while pending:
        for loop in pending:
            loop.cancel()
        _, pending = await asyncio.wait(pending, timeout=CANCEL_AGAIN_SECONDS)


async def _forever(loop: Callable[[], Awaitable[Any]]) -> None:
    await loop()
