"""`manage.py rebuild_queue`: after a lost Redis, guardrails are put back into it, usage that was not metered yet onto
its stream, and background requests that had not ended into their queues."""

import asyncio
import json
import sys
from functools import cache, partial
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from redis.exceptions import RedisError
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from billing.clickhouse.shapes import RequestRow
from billing.selectors import request_row
from contracts.errors import Unavailable
from controlplane.background.keeping import open_kept
from controlplane.background.rebuild import OPEN_BOUNDS, Fate, Rebuild, Rebuilt
from controlplane.background.restating import Restating, UnreadableLog, read_lines, row_of
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
HOUR_MS = 3_600_000
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
        parser.add_argument(
            "--attempt-logs", type=Path, action="append", default=[], metavar="FOLDER",
            help="folder of a worker's attempt logs; repeat it; default: those of this machine",
        )  # fmt: skip
        parser.add_argument("--hours", type=int, default=48, help="how far back the attempt logs are read (48)")
        parser.add_argument("--json", action="store_true", help="one JSON object on stdout")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            rebuilt, restating = asyncio.run(_run(options["attempt_logs"], hours=options["hours"]))
        except UnreadableLog as error:
            raise CommandError(str(error)) from error
        except (Unavailable, RedisError, ClickHouseError, OSError, TimeoutError) as error:
            raise CommandError(f"a store does not answer, run it again: {error}") from error
        if options["json"]:
            sums = {fate.value: count for fate, count in rebuilt.fates.items()}
            usage = {"usage_restated": restating.fresh, "usage_left": restating.left}
            self.stdout.write(json.dumps(sums | usage | {"retry_after_ms": rebuilt.retry_after_ms}))
        else:
            for fate, count in rebuilt.fates.items():
                if count or fate is Fate.BACK:
                    self.stdout.write(f"{count:8,}  {SAID[fate]}")
            if restating.fresh or restating.left:
                self.stdout.write(f"{restating.fresh:8,}  ended before: their usage is put on its stream again")
                self.stdout.write(f"{restating.left:8,}  of attempt logs were settled otherwise, and left so")
        if not rebuilt.complete:
            when = f" in {rebuilt.retry_after_ms / 1000:.0f} s" if rebuilt.retry_after_ms is not None else ""
            raise CommandError(f"not all are back; run it again{when}")


async def _run(folders: list[Path], *, hours: int) -> tuple[Rebuilt, Restating]:
    env, clock = environment(), SystemClock()
    logs = folders or [env.home / "attempts"]
    records = await asyncio.to_thread(read_lines, logs, since_ms=clock.now_ms() - hours * HOUR_MS)
    redis = open_redis(env.redis)
    columns = (SpinnerColumn(), TextColumn("bringing back"), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True, width=None if sys.stderr.isatty() else 100)
    try:
        policies = PublishedPolicies(store=PolicyStore(redis))
        for ref in await from_database(published_refs, limit=POLICIES_MAX):
            await policies.get(ref)  # workers read them from Redis alone: those that it lost are put there again
        queue_of, limits = cache(lambda pool: FairQueue(redis, pool, OPEN_BOUNDS)), Limits(redis, clock=clock)
        restating = Restating(queue_of=queue_of, limits=limits, billed=_metered)
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("attempt logs", total=len(records))
            async for _ in restating.run(records.values()):
                progress.advance(task)
        rebuild = Rebuild(
            kept=open_kept(clock=clock, secret=env.secret.get_secret_value(), old_secrets=env.old_secrets),
            queue_of=queue_of,
            limits=limits,
            epochs=DatabaseEpochs(),
            policies=policies,
            context_of=lambda key_id: from_database(selectors.load_context_of, key_id),
            billed=partial(_billed, restating),
            clock=clock,
        )
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("rows", total=await from_database(selectors.count_open_background))
            async for _ in rebuild.run():
                progress.advance(task)
        return rebuild.report, restating
    finally:
        await redis.aclose(close_connection_pool=True)


async def _metered(request_id: str) -> RequestRow | None:
    return await asyncio.to_thread(partial(request_row, request_id=request_id))


async def _billed(restating: Restating, request_id: str) -> RequestRow | None:
    """Metered, or about to be."""
    record = restating.restated.get(request_id)
    return await _metered(request_id) if record is None else row_of(record)
