"""Hands the gateway its ports: what reads the database crosses to a thread here, once, with a deadline.

Called by `asgi.py`. Invariant: warm answers (keys, prices, catalogue, policies) keep serving while PostgreSQL is away.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import ParamSpec, TypeVar

from asgiref.sync import sync_to_async
from django.db import DatabaseError, close_old_connections
from redis.exceptions import RedisError

from billing import selectors as billing_reads
from billing.clickhouse.shapes import RequestRow, UsagePage
from contracts.clock import Clock
from contracts.errors import Rejected, Unavailable
from contracts.money import PriceCard
from contracts.tenancy import PolicyRef, TenantContext
from controlplane.catalogue import CatalogueCache
from controlplane.env import Environment, environment
from controlplane.models import ServedModel
from fairqueue.keys import mailbox_channel
from fairqueue.policy import QueueBounds
from fairqueue.queue import FairQueue
from gateway.services import Epochs, GatewayServices, GatewaySettings, UsageQuery
from gateway.stream.mailbox import Mailbox
from safety import selectors as safety_reads
from safety.engines.pool import ValidatorPool
from safety.policy import CompiledPolicy, PolicyError
from safety.published import PolicyMissing, PolicyStore
from stores.clickhouse import ClickHouseUnavailable
from stores.redis import open_redis
from stores.secrets import CACHE_SALT, derive
from stores.subscription import Subscriber
from stores.system import SystemClock, mint_nonce
from tenants import selectors as tenant_reads
from tenants.auth.resolve import Resolver
from tenants.limits.buckets import Limits
from tenants.peppers import peppers
from tenants.services import load_keys

DATABASE_SECONDS = 3.0
REPORT_SECONDS = 20.0
PRICE_FRESH_SECONDS = 30.0
PRICE_ENTRIES_MAX = 10_000
WARM_POLICIES_MAX = 100

log = logging.getLogger("weir.wiring")

P = ParamSpec("P")
T = TypeVar("T")


def gateway_services() -> GatewayServices:
    """The ports of this gateway process, from the environment."""
    env = environment()
    secret = env.secret.get_secret_value()
    clock = SystemClock()
    redis = open_redis(env.redis)
    catalogue, prices = CatalogueCache(redis=redis, clock=clock, read_offered=_read_offered), PriceCache(clock=clock)
    validators = ValidatorPool()
    policies = PublishedPolicies(store=PolicyStore(redis))
    gateway_id = env.gateway_id or f"gw-{mint_nonce()}"
    return GatewayServices(
        gateway_id=gateway_id,
        clock=clock,
        redis=redis,
        mailbox=_mailbox(env, gateway_id),
        limits=Limits(redis),
        queue_of=cache(lambda pool: FairQueue(redis, pool=pool, bounds=QueueBounds())),
        resolver=Resolver(KeyLoads(prices), clock=clock, peppers=peppers()),
        epochs=DatabaseEpochs(),
        catalogue=catalogue,
        prices=prices,
        policies=policies,
        usage=ClickHouseReports(),
        cache_salt_secret=derive(secret, CACHE_SALT),
        validators=validators,
        background=(catalogue.keep_fresh, prices.keep_fresh, partial(_warm, policies, validators)),
        settings=GatewaySettings(
            cors_origins=tuple(o.strip() for o in env.cors_origins.split(",") if o.strip()),
            trusted_proxies=env.proxies,
        ),
    )


async def _warm(policies: "PublishedPolicies", validators: ValidatorPool) -> None:
    """Compiles published policies before somebody waits for it: those there are, then each new version. The
    validators' processes end with the server."""
    try:
        for ref in await from_database(safety_reads.published_refs, limit=WARM_POLICIES_MAX):
            await policies.get(ref)
    except Unavailable:
        log.warning("policies are not warm; the first request of each compiles it")
    try:
        await policies.store.keep_warm()
    finally:
        await validators.close()


async def from_database(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`call` in a thread, within three seconds. Raises Unavailable when PostgreSQL does not answer."""

    def ask() -> T:
        close_old_connections()
        return call(*args, **kwargs)

    try:
        async with asyncio.timeout(DATABASE_SECONDS):
            return await sync_to_async(ask, thread_sensitive=False)()
    except (DatabaseError, TimeoutError) as error:
        raise Unavailable("The database does not answer right now.", retry_after_ms=2_000) from error


async def _read_offered() -> dict[str, str]:
    return await from_database(
        lambda: dict(ServedModel.objects.filter(enabled=True).values_list("name", "tokenizer_dir"))
    )


class KeyLoads:
    """`tenants.auth.resolve.Load`. Keys that are asked for while others are read are read together, by two queries.

    A gateway that starts under load knows no key; one by one, they would cost it five milliseconds each.
    """

    def __init__(self, prices: "PriceCache") -> None:
        self._prices = prices
        self._waiting: list[_AskedKey] = []
        self._reading = asyncio.Lock()

    async def __call__(self, digests: Sequence[str]) -> TenantContext | None:
        asked = _AskedKey(digests, asyncio.get_running_loop().create_future())
        self._waiting.append(asked)
        async with self._reading:  # whoever is next reads for all who wait
            if not asked.answer.done():
                await self._read(asked)
        context = asked.answer.result()
        if isinstance(context, Rejected):
            raise context
        if context is not None:
            self._prices.saw(tenant_id=context.tenant_id, epoch=context.tenant_epoch)
        return context

    async def _read(self, mine: "_AskedKey") -> None:
        batch, self._waiting = self._waiting, []
        try:
            contexts: Sequence[TenantContext | Rejected | None] = await from_database(
                load_keys, [each.digests for each in batch]
            )
        except Unavailable as error:
            contexts = [Unavailable(error.message, retry_after_ms=error.retry_after_ms) for _ in batch]
        except BaseException:  # cancelled: the others read for themselves
            self._waiting = [each for each in batch if each is not mine] + self._waiting
            raise
        for each, context in zip(batch, contexts, strict=True):
            each.answer.set_result(context)


@dataclass(slots=True, eq=False)
class _AskedKey:
    digests: Sequence[str]
    answer: "asyncio.Future[TenantContext | Rejected | None]"


class DatabaseEpochs:
    """`gateway.services.EpochSource`: the truth about revocation, read after Redis lost it."""

    async def load(self, *, tenant_id: str) -> Epochs:
        keys, tenant = await from_database(tenant_reads.epochs, tenant_id)
        return Epochs(keys=keys, tenant=tenant)


@dataclass(slots=True)
class PriceCache:
    """`gateway.services.Prices`: known pairs are read again every thirty seconds, off every request's way.

    A tenant's cards are of one epoch: a plan that changed, or another plan, is another epoch and read anew.
    """

    clock: Clock
    _cards: dict[tuple[str, str, int], PriceCard | None] = field(default_factory=dict)
    _epochs: dict[str, int] = field(default_factory=dict)

    def saw(self, *, tenant_id: str, epoch: int) -> None:
        """A context of this epoch was read; later ones stand."""
        if epoch > self._epochs.get(tenant_id, 0):
            if len(self._epochs) >= PRICE_ENTRIES_MAX:
                self._epochs.pop(next(iter(self._epochs)))
            self._epochs[tenant_id] = epoch

    async def card(self, *, tenant_id: str, model: str) -> PriceCard | None:
        key = (tenant_id, model, self._epochs.get(tenant_id, 0))
        if self._cards.get(key) is None:  # unknown, or without a price when last seen: one may be there by now
            if len(self._cards) >= PRICE_ENTRIES_MAX:
                self._cards.pop(next(iter(self._cards)))
            self._cards[key] = await self._read(tenant_id, model)
        return self._cards[key]

    async def keep_fresh(self) -> None:
        """Runs as long as the server. While PostgreSQL is away the last prices stand."""
        while True:
            await asyncio.sleep(PRICE_FRESH_SECONDS)
            try:
                for tenant_id, model, epoch in list(self._cards):
                    if epoch != self._epochs.get(tenant_id, 0):
                        self._cards.pop((tenant_id, model, epoch), None)
                    else:
                        self._cards[tenant_id, model, epoch] = await self._read(tenant_id, model)
            except Unavailable:
                log.warning("prices not refreshed, the last ones stand")

    async def _read(self, tenant_id: str, model: str) -> PriceCard | None:
        return await from_database(
            billing_reads.price_card, tenant_id=tenant_id, model=model, at_ms=self.clock.now_ms()
        )


@dataclass(slots=True)
class PublishedPolicies:
    """`gateway.services.Policies`: Redis first, PostgreSQL when Redis lost it. The guard fails closed."""

    store: PolicyStore

    async def get(self, ref: PolicyRef) -> CompiledPolicy:
        """Raises Unavailable when neither holds it, or what they hold cannot be compiled here."""
        if ref.version == 0:
            log.error("policy %s is assigned to a tenant but was never published", ref.policy_id)
            raise Unavailable(
                "This organization's guardrail policy has no published version, so nothing is served. "
                "Ask the operator to publish it.",
                code="policy_not_published",
                retry_after_ms=60_000,
            )
        try:
            return await self._find(ref)
        except (RedisError, TimeoutError, PolicyMissing, PolicyError) as error:
            log.warning("policy %s v%d: %s", ref.policy_id, ref.version, type(error).__name__)
            raise Unavailable("The guardrail policy cannot be read right now.", retry_after_ms=2_000) from error

    async def _find(self, ref: PolicyRef) -> CompiledPolicy:
        try:
            return await self.store.get(ref)
        except PolicyMissing:
            document = await from_database(safety_reads.policy_document, ref.policy_id, ref.version)
            await self.store.put(document)
            return await self.store.get(ref)


class ClickHouseReports:
    """`gateway.services.UsageReports` over `billing.selectors`."""

    async def buckets(self, *, tenant_id: str, query: UsageQuery) -> UsagePage:
        def ask() -> UsagePage:
            return billing_reads.usage_buckets(
                tenant_id=tenant_id,
                start_ms=query.start_ms,
                end_ms=query.end_ms,
                bucket_width=query.bucket_width,
                group_by=query.group_by,
                models=query.models,
                project_ids=query.project_ids,
                api_key_ids=query.api_key_ids,
                limit=query.limit,
                page=query.page,
            )

        return await _report(ask)

    async def request(self, *, tenant_id: str, request_id: str) -> RequestRow | None:
        return await _report(lambda: billing_reads.request_row(request_id=request_id, tenant_id=tenant_id))


async def _report(ask: Callable[[], T]) -> T:
    try:
        async with asyncio.timeout(REPORT_SECONDS):
            return await asyncio.to_thread(ask)
    except (ClickHouseUnavailable, TimeoutError) as error:
        raise Unavailable("Usage cannot be read right now; nothing is lost.", retry_after_ms=5_000) from error


def _mailbox(env: Environment, gateway_id: str) -> Mailbox:
    return Mailbox(channel=mailbox_channel(gateway_id), listen=Subscriber(env.redis).listen)
