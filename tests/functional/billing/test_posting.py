"""Usage streams into the ledger on real Valkey and PostgreSQL; the settler as a process, killed after its commit."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection
from redis.asyncio import Redis

from billing.ledger.posting import LedgerPosting
from billing.metering.consumer import UsageConsumer
from billing.metering.streams import LEDGER_GROUP, UsageStreams
from billing.selectors import posted_nano, receivable_nano
from contracts.clock import FakeClock
from fairqueue.keys import PoolKeys
from fairqueue.messages import usage_from_stream
from tenants.models import Tenant

pytestmark = pytest.mark.django_db(transaction=True)

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_SECONDS = 90


@pytest.fixture
def acme(transactional_db: None, tenants: dict[str, Tenant]) -> Tenant:
    return tenants["acme"]


@sync_to_async
def owed(tenant: Tenant) -> tuple[int, int]:
    """By request and by entry; in a thread, whose connection must not outlive the test."""
    tenant_id = str(tenant.pk)
    try:
        return (
            posted_nano(tenant_id=tenant_id, currency="USD"),
            receivable_nano(tenant_id=tenant_id, currency="USD"),
        )
    finally:
        connection.close()


class TestLedgerPosting:
    async def test_posts_each_record_once_and_buries_what_has_no_ledger(
        self, acme: Tenant, redis: Redis, usage: Any, fields_of: Any, cost_nano: int
    ) -> None:
        tickets = await usage.add(3, tenants=[str(acme.pk)])
        await usage.add(1, tenants=["00000000-0000-4000-8000-000000000000"])
        await usage.add(1, tenants=["no-uuid"])
        await redis.xadd(PoolKeys("pool").usage, fields_of(tickets[0]))
        await redis.xadd(PoolKeys("pool").usage, fields_of(tickets[1], completion=11, delivered=11))
        streams = UsageStreams(redis=redis, group=LEDGER_GROUP, consumer="settler")
        posting = LedgerPosting(streams=streams, revive=usage_from_stream, clock=FakeClock())
        try:
            await UsageConsumer(streams=streams, work=posting, clock=FakeClock()).round()
        finally:
            await posting.close()
        assert await owed(acme) == (3 * cost_nano, 3 * cost_nano)
        letters = [fields[b"dead_reason"] for _, fields in await redis.xrange(PoolKeys("pool").usage + ":dead")]
        assert len(letters) == 3
        assert any(b"unknown tenant" in reason for reason in letters)
        assert any(b"no-uuid" in reason for reason in letters)
        assert any(b"differs" in reason for reason in letters)
        assert await usage.unfinished(group=LEDGER_GROUP) == 0


@pytest.mark.slow
class TestSettlerProcess:
    async def test_posts_once_when_killed_between_commit_and_acknowledgement(
        self, acme: Tenant, redis: Redis, valkey_url: str, usage: Any, cost_nano: int, tmp_path: Path
    ) -> None:
        await usage.add(5, tenants=[str(acme.pk)])
        killed = start(tmp_path, valkey_url, fault="ledger.after_commit")
        assert await finish(killed, tmp_path) == -signal.SIGKILL
        assert (await owed(acme))[0] == 5 * cost_nano
        assert await usage.unfinished(group=LEDGER_GROUP) == 5
        await usage.add(1, tenants=[str(acme.pk)])
        settler = start(tmp_path, valkey_url)
        give_up = time.monotonic() + DEADLINE_SECONDS
        while await usage.unfinished(group=LEDGER_GROUP):
            assert settler.poll() is None, (tmp_path / "settler.log").read_text()
            assert time.monotonic() < give_up, (tmp_path / "settler.log").read_text()
            await asyncio.sleep(0.05)
        settler.send_signal(signal.SIGTERM)
        assert await finish(settler, tmp_path) == 0
        assert await owed(acme) == (6 * cost_nano, 6 * cost_nano)


def start(home: Path, valkey_url: str, *, fault: str = "") -> subprocess.Popen[bytes]:
    found = connection.settings_dict
    url = f"postgresql://{found['USER']}:{found['PASSWORD']}@{found['HOST']}:{found['PORT']}/{found['NAME']}"
    environment = {**os.environ, "WEIR_HOME": str(home), "REDIS_URL": valkey_url, "DATABASE_URL": url, "FAULT": fault}
    with (home / "settler.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, str(ROOT / "manage.py"), "settler"], env=environment, cwd=ROOT, stdout=log, stderr=log
        )


async def finish(process: subprocess.Popen[bytes], home: Path) -> int:
    try:
        return await asyncio.to_thread(process.wait, DEADLINE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        pytest.fail(f"the settler did not end:\n{(home / 'settler.log').read_text()}")
