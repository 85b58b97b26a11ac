"""`manage.py meter`: usage streams into ClickHouse; in local mode also the owner of the embedded ClickHouse."""

import asyncio
import contextlib
import logging
import time
import uuid
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from redis.asyncio import Redis
from redis.exceptions import RedisError

from billing.clickhouse.migrate import MigrationError, Topology, migrate
from billing.management.composition import report_health, stop_on_signals, usage_reviver
from billing.metering.attempts import AttemptCollector
from billing.metering.consumer import Pace, UsageConsumer
from billing.metering.feed import UsageFeed
from billing.metering.meter import Meter
from billing.metering.streams import METER_GROUP, UsageStreams
from stores.clickhouse import ClickHouse, ClickHouseError, ClickHouseUnavailable
from stores.clickhouse_socket import ChdbServer
from stores.clickhouse_url import is_local, open_writer, socket_path
from stores.redis import open_redis
from stores.system import SystemClock

REPLY_SECONDS = 20.0  # one reply may hold ten thousand records
_MIGRATE_PAUSE_SECONDS = 2.0
_BACKOFF_MAX_SECONDS = 30.0

log = logging.getLogger("weir.billing")


class Command(BaseCommand):
    """Runs until SIGTERM. ClickHouse away: it waits, and usage waits in Redis."""

    requires_system_checks: tuple[str, ...] = ()  # they are for what serves HTTP
    help = "Write usage records into ClickHouse; own the embedded ClickHouse in local mode."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--name", default="meter", help="stable name of this meter; two meters have two names")
        parser.add_argument("--cluster", default="", help="ClickHouse cluster: tables are replicated on it")
        parser.add_argument("--batch-seconds", type=float, default=1.0, help="a batch closes after this time")

    def handle(self, *args: Any, **options: Any) -> None:
        env = settings.ENV
        try:
            clickhouse = open_writer(env.clickhouse, directory=Path(env.home) / "clickhouse")
            _migrate_patiently(clickhouse, Topology(cluster=options["cluster"]))
        except (ValueError, ClickHouseError, MigrationError) as error:
            raise CommandError(str(error)) from error
        try:
            asyncio.run(_run(clickhouse, name=options["name"], pace=Pace(batch_seconds=options["batch_seconds"])))
        finally:
            clickhouse.close()


def _migrate_patiently(clickhouse: ClickHouse, topology: Topology) -> None:
    """Wait for a server that is not up yet, for ever: usage is safe in Redis meanwhile."""
    delay = _MIGRATE_PAUSE_SECONDS
    while True:
        try:
            migrate(clickhouse=clickhouse, topology=topology, pause=time.sleep)
        except ClickHouseUnavailable as error:
            log.warning("ClickHouse is away, next try in %.0f s: %s", delay, error)
            time.sleep(delay)
            delay = min(delay * 2, _BACKOFF_MAX_SECONDS)
        else:
            return


async def _run(clickhouse: ClickHouse, *, name: str, pace: Pace) -> None:
    stop = stop_on_signals()
    clock = SystemClock()
    redis = open_redis(settings.ENV.redis, reply_timeout=REPLY_SECONDS)
    streams = UsageStreams(redis=redis, group=METER_GROUP, consumer=name)
    feed = UsageFeed(broker_url=settings.ENV.broker, clock=clock)
    meter = Meter(
        redis=redis,
        streams=streams,
        clickhouse=clickhouse,
        revive=usage_reviver(),
        feed=feed,
        clock=clock,
        mint_batch_id=lambda: str(uuid.uuid4()),
    )
    consumer = UsageConsumer(streams=streams, work=meter, clock=clock, pace=pace, trims=True)

    attempts = AttemptCollector(folder=Path(settings.ENV.home) / "attempts", clickhouse=clickhouse)

    async def line() -> str:
        lag = await _lag(redis, streams)
        return (
            f"meter: {consumer.records} records, {consumer.failures} failures, lag {lag}, feed {feed.published}, "
            f"attempts {attempts.collected}"
        )

    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(redis.aclose, close_connection_pool=True)
        stack.callback(feed.close)
        if is_local(settings.ENV.clickhouse):
            await stack.enter_async_context(_serve(clickhouse))
        log.info("meter %s is up", name)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(consumer.run(stop=stop))
            tasks.create_task(attempts.run(stop=stop))
            tasks.create_task(report_health(stop=stop, line=line))
    log.info("meter %s has stopped", name)


def _serve(clickhouse: ClickHouse) -> ChdbServer:
    from stores.clickhouse_chdb import ChdbOwner  # chDB is imported where it is owned

    assert isinstance(clickhouse, ChdbOwner)
    return ChdbServer(owner=clickhouse, path=socket_path(settings.ENV.clickhouse))


async def _lag(redis: Redis, streams: UsageStreams) -> str:
    try:
        async with asyncio.timeout(REPLY_SECONDS):
            return str(await streams.lag())
    except (RedisError, TimeoutError):
        return "unknown"
