"""`manage.py settler`: the sweeper of what crashes left, the keeper of background answers, the posting of usage to
the ledger, and the signing of receipts, in one process.

Invariant: nothing waits for the key: with PostgreSQL away, or its file refused, requests are settled all the same.
"""

import asyncio
import logging
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.db import Error as DatabaseError
from django.db import connections
from redis.asyncio import Redis

from billing.ledger.posting import LedgerPosting
from billing.management.composition import (
    begin_to_sign,
    open_answer_keeper,
    open_sweeper,
    report_health,
    signed_receipt_of,
    stop_on_signals,
    usage_reviver,
)
from billing.metering.consumer import Pace, UsageConsumer
from billing.metering.streams import LEDGER_GROUP, UsageStreams
from billing.proof.desk import serve_receipts
from billing.proof.signing import KeyRefused, Signer
from stores.clickhouse import ClickHouseError
from stores.pulse import keep_touching, pulse_file
from stores.redis import open_redis
from stores.stopping import stopped_within
from stores.system import SystemClock

REPLY_SECONDS = 20.0
KEY_SECONDS = 10.0
BATCH_ROWS = 2_000  # one database transaction

log = logging.getLogger("weir.billing")


class Command(BaseCommand):
    """Runs until SIGTERM. A store that is away is waited for; nothing is lost meanwhile."""

    requires_system_checks: tuple[str, ...] = ()  # they are for what serves HTTP
    help = "Settle ended requests, void dead holds, keep background answers, post usage to the ledger."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--name", default="settler", help="stable name of this settler; two settlers have two names"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        asyncio.run(_run(name=options["name"]))


async def _give_receipts(redis: Redis, *, stop: asyncio.Event) -> None:
    """Publish this settler's key, as soon as PostgreSQL takes it, and answer who asks for receipts."""
    while not stop.is_set():
        try:
            async with asyncio.timeout(KEY_SECONDS):
                signer = await asyncio.to_thread(_publish_key)
            break
        except (DatabaseError, KeyRefused, OSError, TimeoutError) as error:
            log.warning("receipts are not signed yet: %s", error or type(error).__name__)
            await stopped_within(stop, seconds=KEY_SECONDS)
    else:
        return
    log.info("receipts are signed with key %s", signer.key_id)
    await serve_receipts(redis, answer=_receipt, stop=stop)


def _publish_key() -> Signer:
    try:
        return begin_to_sign()
    finally:
        connections.close_all()


def _receipt(request_id: str, tenant_id: str) -> dict[str, Any] | None:
    try:
        return signed_receipt_of(request_id, tenant_id)
    except (ClickHouseError, DatabaseError, KeyRefused) as error:
        raise OSError(str(error)) from error  # not now: it is asked again


async def _run(*, name: str) -> None:
    stop = stop_on_signals()
    clock = SystemClock()
    redis = open_redis(settings.ENV.redis, reply_timeout=REPLY_SECONDS)
    streams = UsageStreams(redis=redis, group=LEDGER_GROUP, consumer=name)
    posting = LedgerPosting(streams=streams, revive=usage_reviver(), clock=clock)
    consumer = UsageConsumer(streams=streams, work=posting, clock=clock, pace=Pace(batch_rows=BATCH_ROWS))
    sweeper = open_sweeper(redis=redis, streams=streams, clock=clock)
    answers = open_answer_keeper(redis=redis, clock=clock)

    async def line() -> str:
        return (
            f"settler: {posting.posted} posted of {consumer.records} records, {consumer.failures} failures; "
            f"sweeper {sweeper.report}; answers {answers.report}"
        )

    log.info("settler %s is up", name)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(sweeper.run(stopping=stop))
            tasks.create_task(answers.run(stopping=stop))
            tasks.create_task(consumer.run(stop=stop))
            tasks.create_task(_give_receipts(redis, stop=stop))
            tasks.create_task(report_health(stop=stop, line=line))
            tasks.create_task(keep_touching(path=pulse_file(home=settings.ENV.home, name="settler"), stop=stop))
    finally:
        await posting.close()
        await redis.aclose(close_connection_pool=True)
    log.info("settler %s has stopped", name)
