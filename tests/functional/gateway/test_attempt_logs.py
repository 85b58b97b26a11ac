"""After a lost Redis: what had ended and was on its way to the books comes back from attempt logs, once."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from redis.asyncio import Redis

from billing.clickhouse.shapes import RequestRow
from contracts.tokens import TokenCounts
from controlplane.background.rebuild import OPEN_BOUNDS
from controlplane.background.restating import Restating, UnreadableLog, read_lines, row_of
from fairqueue.messages import usage_from_stream
from fairqueue.queue import FairQueue
from fairqueue.restating import entry_of
from stores.system import SystemClock
from tenants.limits.buckets import Limits
from tenants.limits.holds import HoldHint
from tests.factories.jobs import make_record, make_ticket
from workers.attempts import AttemptLog

POOL = "toy-pool"
USAGE = f"w:{{p:{POOL}}}:usage"
RECORD = make_record(
    make_ticket("0198a000-0000-7000-8000-000000000001", pool=POOL, admitted_at_ms=SystemClock().now_ms()),
    counts=TokenCounts(prompt=7, cached=2, completion=3, reasoning=1),
)

Restate = Callable[..., Awaitable[Restating]]


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """Attempt logs in which a worker has written an earlier end of the request, and the one that counts."""
    log = AttemptLog(tmp_path / "w1.jsonl", bytes_max=10**6, files_max=2)
    writing = asyncio.ensure_future(log.run())
    earlier = replace(RECORD, billed_at_ms=RECORD.billed_at_ms - 1, outcome="failed", counts=TokenCounts())
    for record in (earlier, RECORD):
        assert await log.append(record, fence="1-a")
    writing.cancel()
    return tmp_path


@pytest.fixture
def restate(redis: Redis, folder: Path) -> Restate:
    async def run(*, metered: RequestRow | None = None) -> Restating:
        async def billed(request_id: str) -> RequestRow | None:
            return metered

        restating = Restating(
            queue_of=lambda pool: FairQueue(redis, pool, OPEN_BOUNDS), limits=Limits(redis), billed=billed
        )
        async for _ in restating.run(read_lines([folder], since_ms=0).values()):
            pass
        return restating

    return run


class TestLostUsage:
    async def test_comes_back_as_it_was_and_once(self, redis: Redis, restate: Restate) -> None:
        for fresh in (1, 0):
            restating = await restate()
            assert (restating.fresh, restating.left) == (fresh, 0)
            assert restating.restated == {RECORD.request_id: RECORD}
        entries = await redis.xrange(USAGE)
        assert [usage_from_stream(entry) for _, entry in entries] == [RECORD]
        assert await redis.hget(f"w:{{t:{RECORD.tenant_id}}}:hold:{RECORD.request_id}", "st") == b"settled"

    async def test_is_not_made_of_what_the_meter_has(self, redis: Redis, restate: Restate) -> None:
        assert (await restate(metered=row_of(RECORD))).restated == {}
        assert await redis.xlen(USAGE) == 0

    async def test_is_not_made_of_what_its_pool_knows(self, redis: Redis, restate: Restate) -> None:
        queue, ticket = FairQueue(redis, POOL, OPEN_BOUNDS), make_ticket(RECORD.request_id, pool=POOL)
        await queue.enqueue(
            ticket,
            mailbox="",
            enqueue_deadline_ms=SystemClock().now_ms() + 60_000,
            weight_milli=1_000,
            queued_max=9,
            expires_at_ms=2**52,
        )
        assert not await queue.restate(RECORD)
        assert (await restate()).restated == {}
        assert await redis.xlen(USAGE) == 0

    async def test_is_left_to_another_settlement(self, redis: Redis, restate: Restate) -> None:
        await Limits(redis).settle(
            tenant_id=RECORD.tenant_id, request_id=RECORD.request_id, counts=TokenCounts(), cost_nano=0,
            outcome="cancelled", hint=HoldHint.of(RECORD),
        )  # fmt: skip
        restating = await restate()
        assert (restating.fresh, restating.left, restating.restated) == (0, 1, {})
        assert await redis.xlen(USAGE) == 0


class TestAttemptLogs:
    async def test_are_read_from_a_time_on(self, folder: Path) -> None:
        assert read_lines([folder], since_ms=RECORD.billed_at_ms) == {RECORD.request_id: RECORD}
        assert read_lines([folder], since_ms=RECORD.billed_at_ms + 1) == {}

    def test_are_read_up_to_a_line_that_a_crash_cut(self, tmp_path: Path) -> None:
        (tmp_path / "w1.jsonl").write_bytes(b'{"v":1,"request_id":"0198')
        assert read_lines([tmp_path], since_ms=0) == {}
        (tmp_path / "w1.jsonl").write_bytes(b'{"v":1}\n')
        with pytest.raises(UnreadableLog, match=r"w1.jsonl, line 1"):
            read_lines([tmp_path], since_ms=0)


class TestEntry:
    def test_of_a_record_says_all_that_the_record_says(self) -> None:
        for record in (RECORD, replace(RECORD, policy_id="p", policy_version=3, error_param="seed", budget_cut=True)):
            entry = {name.encode(): value if isinstance(value, bytes) else str(value).encode()
                     for name, value in entry_of(record).items()}  # fmt: skip
            assert usage_from_stream(entry) == record
