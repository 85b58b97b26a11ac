"""What the commands of this room are built of: a command composes rooms, as the control plane does.

Rooms beside and above billing are reached by their dotted name, so no module of billing depends on them. Invariant: a
process is told to stop once, by SIGTERM or SIGINT, and finishes the round that it is in.
"""

import asyncio
import logging
import signal
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from django.conf import settings
from django.db import close_old_connections
from django.utils import timezone
from django.utils.module_loading import import_string
from redis.asyncio import Redis

from billing.closing.check import Evidence
from billing.closing.queue_counts import QueueCounts
from billing.closing.watermark import read_watermark
from billing.metering.meter import Revive
from billing.metering.streams import UsageStreams
from billing.models import CreditAlert, DunningStep
from billing.proof.publishing import ensure_key, open_published, publish_derived
from billing.proof.receipts import find_receipt
from billing.proof.signing import KeyRefused, Signer
from billing.selectors import usage_reader
from contracts.clock import Clock
from contracts.money import text_from_nano
from stores.objects import Objects
from stores.redis_blocking import blocking_redis
from stores.stopping import stopped_within

HEALTH_SECONDS = 30.0

log = logging.getLogger("weir.billing")


def gather_evidence(*, attempt_logs: Sequence[Path] = ()) -> Evidence:
    """The books of this installation, for a close. Blocking: commands, jobs and the admin.

    `attempt_logs`: folders beside what meters have collected. Raises redis.exceptions.RedisError.
    """
    redis = blocking_redis(settings.ENV.redis)
    watermark = read_watermark(redis, revive=usage_reviver())
    s3_url = settings.ENV.s3_url
    try:
        signer = open_signer()
    except KeyRefused as error:
        log.info("this process may compare and not seal: %s", error)
        signer = None
    return Evidence(
        reader=usage_reader(),
        watermark=watermark,
        queue=QueueCounts(redis),
        objects=None if s3_url is None else Objects.open(s3_url.get_secret_value()),
        attempt_logs=attempt_logs,
        signer=signer,
    )


def receipt_key_file() -> Path:
    """Where this machine's processes that sign have their key."""
    named: Path | None = settings.ENV.receipt_key_file
    return named or Path(settings.ENV.home) / "keys" / "receipts.pem"


def open_signer() -> Signer:
    """The key that signs receipts and seals. Raises billing.proof.signing.KeyRefused where this process has none."""
    return open_published(receipt_key_file())


def begin_to_sign() -> Signer:
    """As `open_signer`, by the process that makes the key where there is none: the settler. Blocking."""
    now = timezone.now()
    for secret in (settings.ENV.secret.get_secret_value(), *settings.ENV.old_secrets):
        publish_derived(secret, now=now)
    return ensure_key(receipt_key_file(), now=now)


def signed_receipt_of(request_id: str, tenant_id: str) -> dict[str, Any] | None:
    """A request's receipt as it is handed out; None when it is unknown here. Blocking.

    Raises stores.clickhouse.ClickHouseError, KeyRefused.
    """
    try:
        found = find_receipt(usage_reader(), request_id=request_id, tenant_id=tenant_id)
        return None if found is None else open_signer().signed_receipt(found)
    finally:
        close_old_connections()


def tell_of_low_credit(alert: CreditAlert, left_nano: int) -> None:
    """The event `credit.low`, in the caller's transaction."""
    _tell(
        "credit.low",
        tenant_id=alert.tenant_id,
        subject=f"tenant:{alert.tenant_id}",
        after={"currency": alert.currency, "below": f"{alert.below.normalize():f}", "left": text_from_nano(left_nano)},
    )


def tell_of_dunning(step: DunningStep) -> None:
    """The event `invoice.overdue`, in the caller's transaction."""
    document = step.invoice
    _tell(
        "invoice.overdue",
        tenant_id=step.tenant_id,
        subject=f"invoice:{document.pk}",
        after={
            "number": document.number,
            "level": step.level,
            "due": f"{step.due.normalize():f}",
            "currency": document.currency,
            "due_at": document.due_at.isoformat(),
        },
    )


def spendable_nano(tenant_id: uuid.UUID) -> int | None:
    """What a prepaid tenant may still spend by its limit; None for another. Raises contracts.errors.Unavailable."""
    found: int | None = import_string("controlplane.prepaid.spendable_nano")(tenant_id)
    return found


def _tell(name: str, *, tenant_id: uuid.UUID, subject: str, after: Mapping[str, Any]) -> None:
    actor = import_string("tenants.actors.Actor")(name="system:billing")
    import_string("tenants.events.record")(name, tenant_id=tenant_id, subject=subject, actor=actor, after=after)


class Sweeper(Protocol):
    """`gateway.settlement.Sweeper`, `controlplane.background.bringing.AnswerKeeper`."""

    report: Any

    async def run(self, *, stopping: asyncio.Event) -> None: ...


def usage_reviver() -> Revive:
    """The fair queue's own reading of a usage stream entry."""
    reviver: Revive = import_string("fairqueue.messages.usage_from_stream")
    return reviver


def open_sweeper(*, redis: Redis, streams: UsageStreams, clock: Clock) -> Sweeper:
    """The gateway's sweeper over every pool that has a usage stream."""
    open_queue = import_string("fairqueue.queue.FairQueue")
    bounds = import_string("fairqueue.queue.QueueBounds")()
    queues: dict[str, Any] = {}

    def queue_of(pool: str) -> Any:
        if pool not in queues:
            queues[pool] = open_queue(redis, pool, bounds)
        return queues[pool]

    async def pools() -> list[str]:
        await streams.discover()
        return list(streams.pools)

    sweeper: Sweeper = import_string("gateway.settlement.Sweeper")(
        limits=import_string("tenants.limits.buckets.Limits")(redis, clock=clock), queue_of=queue_of, pools=pools
    )
    return sweeper


def open_answer_keeper(*, redis: Redis, clock: Clock) -> Sweeper:
    """What brings the answers of background requests to PostgreSQL, from whichever pool each is in."""
    open_queue = import_string("fairqueue.queue.FairQueue")
    bounds = import_string("fairqueue.queue.QueueBounds")()
    env = settings.ENV
    kept = import_string("controlplane.background.keeping.open_kept")(
        clock=clock, secret=env.secret.get_secret_value(), old_secrets=env.old_secrets
    )
    keeper: Sweeper = import_string("controlplane.background.bringing.AnswerKeeper")(
        kept=kept, queue_of=cache(lambda pool: open_queue(redis, pool, bounds))
    )
    return keeper


def stop_on_signals() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set. Call it in the running loop's main thread."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def report_health(*, stop: asyncio.Event, line: Callable[[], Awaitable[str]]) -> None:
    """Log `line()` every HEALTH_SECONDS until `stop`."""
    while not await stopped_within(stop, seconds=HEALTH_SECONDS):
        log.info("%s", await line())
