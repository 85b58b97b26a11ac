"""`manage.py settler`: the sweeper of what crashes left, the keeper of background answers, and the posting of usage to
the ledger, in one process."""

import asyncio
import logging
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from billing.ledger.posting import LedgerPosting
from billing.management.composition import (
    open_answer_keeper,
    open_sweeper,
    report_health,
    stop_on_signals,
    usage_reviver,
)
from billing.metering.consumer import Pace, UsageConsumer
from billing.metering.streams import LEDGER_GROUP, UsageStreams
from stores.pulse import keep_touching, pulse_file
from stores.redis import open_redis
from stores.system import SystemClock

REPLY_SECONDS = 20.0
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
            tasks.create_task(report_health(stop=stop, line=line))
            tasks.create_task(keep_touching(path=pulse_file(home=settings.ENV.home, name="settler"), stop=stop))
    finally:
        await posting.close()
        await redis.aclose(close_connection_pool=True)
    log.info("settler %s has stopped", name)
