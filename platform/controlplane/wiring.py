"""Hands the gateway its ports: each built once, from the environment.

Called by `asgi.py`. Invariant: one set of ports per process; nothing here decides anything.
"""

import logging
from functools import cache, partial

from contracts.errors import Unavailable
from controlplane.background.keeping import open_kept
from controlplane.catalogue import CatalogueCache
from controlplane.env import environment
from controlplane.models import ServedModel
from controlplane.reads.database import from_database
from controlplane.reads.keys import DatabaseEpochs, KeyLoads
from controlplane.reads.policies import PublishedPolicies
from controlplane.reads.prices import PriceCache
from controlplane.reads.receipts import SettlersReceipts
from controlplane.reads.reports import ClickHouseReports
from fairqueue.keys import mailbox_channel
from fairqueue.policy import QueueBounds
from fairqueue.queue import FairQueue
from gateway.services import GatewayServices, GatewaySettings
from gateway.stream.mailbox import Mailbox
from safety import selectors as safety_reads
from safety.engines.pool import ValidatorPool
from safety.published import PolicyStore
from stores.redis import open_redis
from stores.secrets import CACHE_SALT, derive
from stores.subscription import Subscriber
from stores.system import SystemClock, mint_nonce
from tenants.auth.resolve import Resolver
from tenants.limits.buckets import Limits
from tenants.peppers import peppers

WARM_POLICIES_MAX = 100

log = logging.getLogger("weir.wiring")


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
        mailbox=Mailbox(channel=mailbox_channel(gateway_id), listen=Subscriber(env.redis).listen),
        limits=Limits(redis),
        queue_of=cache(lambda pool: FairQueue(redis, pool=pool, bounds=QueueBounds())),
        resolver=Resolver(KeyLoads(prices), clock=clock, peppers=peppers()),
        epochs=DatabaseEpochs(),
        catalogue=catalogue,
        prices=prices,
        policies=policies,
        usage=ClickHouseReports(),
        receipts=SettlersReceipts(redis=redis, clock=clock),
        cache_salt_secret=derive(secret, CACHE_SALT),
        kept=open_kept(clock=clock, secret=secret, old_secrets=env.old_secrets),
        validators=validators,
        background=(catalogue.keep_fresh, prices.keep_fresh, partial(_warm, policies, validators)),
        settings=GatewaySettings(
            origins=env.origins,
            trusted_proxies=env.proxies,
            background_class=env.background_class,
        ),
    )


async def _warm(policies: PublishedPolicies, validators: ValidatorPool) -> None:
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


async def _read_offered() -> dict[str, str]:
    return await from_database(
        lambda: dict(ServedModel.objects.filter(enabled=True).values_list("name", "tokenizer_dir"))
    )
