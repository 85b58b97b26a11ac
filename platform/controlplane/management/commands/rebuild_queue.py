"""`manage.py rebuild_queue`: after a lost Redis, guardrails are put back into it, and background requests that had not
ended into their queues."""

import asyncio
import json
import sys
from functools import cache, partial
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from redis.exceptions import RedisError
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from billing.selectors import request_row
from contracts.errors import Unavailable
from controlplane.background.keeping import open_kept
from controlplane.background.rebuild import OPEN_BOUNDS, Fate, Rebuild, Rebuilt
from controlplane.env import environment
from controlplane.reads.database import from_database
from controlplane.reads.keys import DatabaseEpochs
from controlplane.reads.policies import PublishedPolicies
from fairqueue.queue import FairQueue
from safety.published import PolicyStore
from safety.selectors import published_refs
from stores.clickhouse import ClickHouseError
from stores.redis import open_redis
from stores.system import SystemClock
from tenants import selectors
from tenants.limits.buckets import Limits

POLICIES_MAX = 10_000
SAID = {
    Fate.THERE: "in their queues already",
    Fate.BACK: "brought back",
    Fate.ENDED: "ended: billed before, expired, or their key is gone",
    Fate.WAITS: "wait: their limits refuse them now",
    Fate.REFUSED: "refused by a tombstone or a hold that was given up; free again in six hours at most",
    Fate.UNTOLD: "never accepted",
}


class Command(BaseCommand):
    """Idempotent: run it as often as you like. Exit code 1 when requests are left that it could not bring back."""

    help = "Bring background requests back into their queues after Redis was lost: held anew, billed once."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="one JSON object on stdout")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            rebuilt = asyncio.run(_run())
        except (Unavailable, RedisError, ClickHouseError, OSError, TimeoutError) as error:
            raise CommandError(f"a store does not answer, run it again: {error}") from error
        if options["json"]:
            sums = {fate.value: count for fate, count in rebuilt.fates.items()}
            self.stdout.write(json.dumps(sums | {"retry_after_ms": rebuilt.retry_after_ms}))
        else:
            for fate, count in rebuilt.fates.items():
                if count or fate is Fate.BACK:
                    self.stdout.write(f"{count:8,}  {SAID[fate]}")
        if not rebuilt.complete:
            when = f" in {rebuilt.retry_after_ms / 1000:.0f} s" if rebuilt.retry_after_ms is not None else ""
            raise CommandError(f"not all are back; run it again{when}")


async def _run() -> Rebuilt:
    env, clock = environment(), SystemClock()
    redis = open_redis(env.redis)
    columns = (SpinnerColumn(), TextColumn("bringing back"), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True, width=None if sys.stderr.isatty() else 100)
    try:
        policies = PublishedPolicies(store=PolicyStore(redis))
        for ref in await from_database(published_refs, limit=POLICIES_MAX):
            await policies.get(ref)  # workers read them from Redis alone: those that it lost are put there again
        rebuild = Rebuild(
            kept=open_kept(clock=clock, secret=env.secret.get_secret_value(), old_secrets=env.old_secrets),
            queue_of=cache(lambda pool: FairQueue(redis, pool, OPEN_BOUNDS)),
            limits=Limits(redis, clock=clock),
            epochs=DatabaseEpochs(),
            policies=policies,
            context_of=lambda key_id: from_database(selectors.load_context_of, key_id),
            billed=lambda request_id: asyncio.to_thread(partial(request_row, request_id=request_id)),
            clock=clock,
        )
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("rows", total=await from_database(selectors.count_open_background))
            async for _ in rebuild.run():
                progress.advance(task)
        return rebuild.report
    finally:
        await redis.aclose(close_connection_pool=True)
