"""Processes of the crash matrix: a server that has everything imported and forks one for each command.

Run as `python -m tests.functional.billing.crash_stage`; a command is a JSON line on stdin, its answer a line on stdout.
Whoever is forked runs the production parts that stand between the engine's last token and the ledger: hold, queue,
attempt log and closing of a worker, sweeper, meter on chDB, posting on PostgreSQL. `FAULT` kills it at one arrow.
"""

import asyncio
import json
import os
import random
import sys
import traceback
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import django

django.setup()

from billing.clickhouse.migrate import Topology, migrate  # noqa: E402
from billing.ledger.posting import LedgerPosting  # noqa: E402
from billing.metering.consumer import Pace, UsageConsumer  # noqa: E402
from billing.metering.faults import fault_point  # noqa: E402
from billing.metering.keys import KNOWN_POOLS, manifests  # noqa: E402
from billing.metering.meter import Meter  # noqa: E402
from billing.metering.streams import LEDGER_GROUP, METER_GROUP, UsageStreams  # noqa: E402
from contracts.errors import Unavailable  # noqa: E402
from contracts.jobs import Claim, UsageRecord  # noqa: E402
from contracts.money import PriceCard  # noqa: E402
from contracts.outcomes import JobState  # noqa: E402
from contracts.tokens import TokenCounts  # noqa: E402
from fairqueue.messages import AbortReason, StepEntry, usage_from_stream  # noqa: E402
from fairqueue.queue import FairQueue, QueueBounds  # noqa: E402
from gateway.settlement import Sweeper  # noqa: E402
from stores.clickhouse_chdb import ChdbOwner  # noqa: E402
from stores.redis import Client, open_redis  # noqa: E402
from stores.system import SystemClock  # noqa: E402
from tenants.limits.buckets import Limits  # noqa: E402
from tenants.limits.holds import HoldRequest  # noqa: E402
from tests.factories.jobs import make_ticket  # noqa: E402
from workers.attempts import AttemptLog  # noqa: E402
from workers.closing import Closing  # noqa: E402
from workers.latency import LatencyTrack  # noqa: E402
from workers.ports import Ports  # noqa: E402
from workers.publish import Lane  # noqa: E402
from workers.verdict import ABORTED, OK, GivenBack  # noqa: E402

PRICE = PriceCard(card_id="in+cached+out", currency="USD", input_nano=250, cached_nano=25, output_nano=2_000)
BATCHES = Pace(batch_rows=3)  # several rounds for a handful of records
LATER_US = 60_000_000  # past every lease
ROUNDS_MAX = 200
REQUESTS = 8


class Nobody:
    """The broker is not among the stores that are compared."""

    async def publish(self, *, batch_id: str, at_ms: int, records: Sequence[UsageRecord]) -> None:
        """Announced to nobody."""


class Pierced:
    """A port that may die after each call, or refuse one, as a process or a store does."""

    def __init__(self, port: Any, room: str, *, refuses: str = "") -> None:
        self._port = port
        self._room = room
        self.refuses = refuses

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._port, name)
        if name not in ("append", "end", "settle", "ack", "reap"):
            return call

        async def pierced(*args: Any, **named: Any) -> Any:
            if name == self.refuses:
                raise Unavailable("the store is away", retry_after_ms=1)
            fault_point(f"{self._room}.before_{name}")
            answer = await call(*args, **named)
            fault_point(f"{self._room}.after_{name}")
            return answer

        return pierced


class Stage:
    """Both slots, both consumers and the worker's way of closing, over one folder."""

    def __init__(self, plan: dict[str, Any], redis: Client) -> None:
        self.plan = plan
        self.shift_us: int = plan["shift_us"]
        self.pool: str = plan["pool"]
        self.dice = random.Random(plan["seed"])
        self.redis = redis
        self.clock = SystemClock()
        self.queue = FairQueue(
            redis, self.pool, QueueBounds(), now_us=lambda: self.clock.now_ms() * 1_000 + self.shift_us
        )
        self.limits = Limits(redis)
        home = Path(plan["home"])
        self.clickhouse = ChdbOwner(directory=home / "clickhouse")
        migrate(clickhouse=self.clickhouse, topology=Topology(), pause=lambda seconds: None)
        self.attempts = AttemptLog(home / "attempts" / "w1.jsonl", bytes_max=2**20, files_max=2)
        self.worker = Pierced(self.limits, "worker")
        streams = {
            group: UsageStreams(redis=redis, group=group, consumer=group) for group in (METER_GROUP, LEDGER_GROUP)
        }
        meter = Meter(
            redis=redis,
            streams=streams[METER_GROUP],
            clickhouse=self.clickhouse,
            revive=usage_from_stream,
            feed=Nobody(),
            clock=self.clock,
            mint_batch_id=lambda: str(uuid.uuid4()),
        )
        self.posting = LedgerPosting(streams=streams[LEDGER_GROUP], revive=usage_from_stream, clock=self.clock)
        self.streams = streams
        self.consumers = [
            UsageConsumer(streams=streams[METER_GROUP], work=meter, clock=self.clock, pace=BATCHES, trims=True),
            UsageConsumer(streams=streams[LEDGER_GROUP], work=self.posting, clock=self.clock, pace=BATCHES),
        ]
        self.sweeper = Sweeper(
            limits=cast("Limits", Pierced(self.limits, "settler")),
            queue_of=lambda _: cast("FairQueue", Pierced(self.queue, "settler")),
            pools=self._pools,
        )

    def _now_us(self) -> int:
        return self.clock.now_ms() * 1_000 + self.shift_us

    async def _pools(self) -> list[str]:
        return [self.pool]

    async def work(self) -> None:
        """All that the plan asks of this process."""
        for streams in self.streams.values():
            await streams.discover()
        if self.plan["admits"]:
            await self.admit()
        for _ in range(ROUNDS_MAX):
            await self.serve(self.plan["worker"])
            self.shift_us += LATER_US
            await self.sweeper.sweep()
            await self.consume()
            waits = {JobState.QUEUED.value, JobState.RUNNING.value, JobState.ENDED.value}
            settled = self.plan["admits"] or not waits & set((await self.states()).values())
            if settled and not await self.lag():
                return

    async def admit(self) -> None:
        """Hold and enqueue what the plan names."""
        for tenant_id in self.plan["tenants"]:
            await self.limits.set_epochs(tenant_id=tenant_id, keys={tenant_id: 1}, tenant_epoch=1)
        for number, request_id in enumerate(self.plan["requests"]):
            tenant_id = self.plan["tenants"][number % len(self.plan["tenants"])]
            now_ms = self.clock.now_ms()
            held = HoldRequest(
                request_id=request_id, tenant_id=tenant_id, project_id="project", api_key_id=tenant_id, key_epoch=1,
                tenant_epoch=1, limits=(), prompt_tokens=100, output_tokens_max=50, cost_max_nano=125_000,
                currency="USD", timezone="UTC", enqueue_deadline_ms=now_ms + 600_000, pool=self.pool,
            )  # fmt: skip
            await self.limits.hold(held)
            ticket = make_ticket(
                request_id, tenant_id=tenant_id, api_key_id=tenant_id, pool=self.pool, price=PRICE, prompt_tokens=100,
                max_tokens=50, admitted_at_ms=now_ms,
            )  # fmt: skip
            await self.queue.enqueue(
                ticket, mailbox="", enqueue_deadline_ms=now_ms + 600_000, weight_milli=1_000, queued_max=1_000,
                expires_at_ms=now_ms + 600_000,
            )  # fmt: skip

    async def serve(self, worker_id: str) -> None:
        """Claim and close whatever waits; some are cancelled, some are left as a dead worker would leave them."""
        served = 0
        while True:
            nonce = f"{worker_id}-{served}-{self.dice.random()}"
            claim = await self.queue.claim(worker_id=worker_id, nonce=nonce, free_kv_tokens=10**6, free_slots=64)
            if not isinstance(claim, Claim):
                return
            served += 1
            await self._serve(worker_id, claim, fate=self.dice.random() if worker_id == "w1" else 0.0)
            if self.dice.random() < 0.5:
                await self.consume()

    async def _serve(self, worker_id: str, claim: Claim, *, fate: float) -> None:
        ticket = claim.ticket
        await self.limits.start(
            tenant_id=ticket.tenant_id, request_id=ticket.request_id, fence=claim.fence, attempt=claim.attempt
        )
        lane = Lane(claim=claim, next_seq=claim.log_length + 1)
        counts = TokenCounts(prompt=100, cached=self.dice.randrange(100), completion=self.dice.randrange(1, 50))
        fault_point("worker.before_step")
        entry = StepEntry(
            request_id=ticket.request_id, fence=claim.fence, first_seq=lane.next_seq, frames=[b"frame"], counts=counts,
            delivered_tokens=counts.completion, progressed=True,
        )  # fmt: skip
        await self.queue.step(worker_id=worker_id, entries=[entry], holding=[ticket.request_id])
        lane.next_seq, lane.logged_tokens, lane.counts = lane.next_seq + 1, counts.completion, counts
        fault_point("worker.after_step")
        if 0.7 < fate <= 0.8:
            return  # its worker hangs: the reaper ends it from the log
        limits = Pierced(self.limits, "worker", refuses="settle" if fate > 0.8 else "")
        ports = Ports(
            worker_id=worker_id, queue=cast("FairQueue", Pierced(self.queue, "worker")), limits=cast("Limits", limits),
            attempts=cast("AttemptLog", Pierced(self.attempts, "worker")), clock=self.clock, policies=cast("Any", None),
            validators=cast("Any", None), host=cast("Any", None), publisher=cast("Any", None),
            evaluation=cast("Any", None),
        )  # fmt: skip
        track = LatencyTrack(claimed_at=self.clock.monotonic(), edge_us=1, guard_us=1, queue_us=claim.queue_us)
        closing = Closing(ports, lane, track=track, builder=None, counts=counts)
        try:
            await closing.close(ABORTED[AbortReason.CANCELLED] if 0.6 < fate <= 0.7 else OK)
        except GivenBack:
            return

    async def consume(self) -> None:
        """A round of the meter and of the ledger, in either order."""
        for consumer in self.dice.sample(self.consumers, k=2):
            await consumer.round()

    async def lag(self) -> int:
        """Records that a group has not finished, and batches that the meter has not."""
        left = sum([await streams.lag() for streams in self.streams.values()])
        return left + int(await cast("Any", self.redis.hlen(manifests(METER_GROUP))))

    async def states(self) -> dict[str, str]:
        """Request -> its state in the queue; what was never enqueued is not there."""
        found = {}
        for request_id in self.plan["requests"]:
            status = await self.queue.status(request_id=request_id)
            if status is not None:
                found[request_id] = status.state.value
        return found


async def run(plan: dict[str, Any]) -> dict[str, Any]:
    """What a process does that may be killed: admit, serve, consume, sweep, until nothing is left. Its books."""
    redis = open_redis(plan["redis"])
    await cast("Any", redis.sadd(KNOWN_POOLS, plan["pool"]))
    stage = Stage(plan, redis)
    async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(stage.attempts.run())
        await stage.work()
        writing.cancel()
    await stage.posting.close()
    books = {
        "states": await stage.states(),
        "lag": await stage.lag(),
        "rows": stage.clickhouse.execute(_ROWS, {"pool": plan["pool"]}),
        "raw": stage.clickhouse.execute("SELECT count() AS n FROM inference_requests_audit")[0]["n"],
    }
    stage.clickhouse.close()
    await redis.aclose(close_connection_pool=True)
    return books


_ROWS = """SELECT request_id, tenant_id, outcome, attempt, worker_id, prompt_tokens, cached_tokens, completion_tokens,
toString(cost) AS cost FROM inference_requests_audit FINAL WHERE pool = {pool:String}"""


def main() -> None:
    """Fork for each command, tell how the child ended."""
    for line in sys.stdin:
        plan = json.loads(line)
        child = os.fork()
        if child == 0:
            os.dup2(2, 1)  # logs
            os.environ["FAULT"] = plan["fault"]
            code = 1
            try:
                Path(plan["home"], "answer.json").write_text(json.dumps(asyncio.run(run(plan)), default=str))
                code = 0
            except Exception:  # noqa: BLE001 - a child says what ended it, and ends
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
