"""What the commands of this room are built of: a command composes rooms, as the control plane does.

Rooms beside and above billing are reached by their dotted name, so no module of billing depends on them. Invariant: a
process is told to stop once, by SIGTERM or SIGINT, and finishes the round that it is in.
"""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from django.conf import settings
from django.utils.module_loading import import_string
from redis.asyncio import Redis

from billing.closing.check import Evidence
from billing.closing.watermark import read_watermark
from billing.metering.meter import Revive
from billing.metering.streams import UsageStreams
from billing.proof.signing import Signer
from billing.selectors import usage_reader
from contracts.clock import Clock
from stores.redis_blocking import blocking_redis

HEALTH_SECONDS = 30.0

log = logging.getLogger("weir.billing")


def gather_evidence(*, attempt_logs: Sequence[Path] = ()) -> Evidence:
    """The books of this installation, for a close. Blocking: commands, jobs and the admin.

    `attempt_logs` none named = this machine's own workers', if there are any. Raises redis.exceptions.RedisError.
    """
    own = Path(settings.ENV.home) / "attempts"
    logs = list(attempt_logs) or ([own] if own.is_dir() else None)
    watermark = read_watermark(blocking_redis(settings.ENV.redis), revive=usage_reviver())
    return Evidence(reader=usage_reader(), watermark=watermark, attempt_logs=logs, signer=open_signer())


def open_signer() -> Signer:
    """The key of this installation's receipts and seals."""
    env = settings.ENV
    return Signer(secret=env.secret.get_secret_value(), old_secret=env.secret_old.get_secret_value())


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
    while not stop.is_set():
        try:
            async with asyncio.timeout(HEALTH_SECONDS):
                await stop.wait()
        except TimeoutError:
            log.info("%s", await line())
