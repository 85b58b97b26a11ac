"""`manage.py meter` as a process, killed after its insert and started again. Every arrow: test_crash_matrix."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from billing.metering.streams import METER_GROUP
from stores.clickhouse import ClickHouseUnavailable
from stores.clickhouse_socket import ChdbClient

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_SECONDS = 60
COUNT = "SELECT count() AS rows, uniqExact(request_id) AS requests FROM inference_requests_audit"

pytestmark = pytest.mark.slow


@contextmanager
def meter_process(home: Path, valkey_url: str, *, fault: str = "") -> Iterator[subprocess.Popen[bytes]]:
    environment = {key: value for key, value in os.environ.items() if key not in ("CLICKHOUSE_URL", "BROKER_URL")}
    environment |= {"WEIR_HOME": str(home), "REDIS_URL": valkey_url, "FAULT": fault}
    command = [sys.executable, str(ROOT / "manage.py"), "meter", "--batch-seconds", "0.05"]
    with (home / "meter.log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(DEADLINE_SECONDS)


def wait_for_exit(process: subprocess.Popen[bytes], home: Path) -> int:
    try:
        return process.wait(DEADLINE_SECONDS)
    except subprocess.TimeoutExpired:
        pytest.fail(f"the meter did not end:\n{(home / 'meter.log').read_text()}")


async def wait_until_finished(usage: Any, process: subprocess.Popen[bytes], home: Path) -> None:
    """Polls a condition; the deadline is a guard against hanging, not a measurement."""
    give_up = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < give_up:
        manifests = await usage.redis.exists("w:usage:manifests:meter")
        if await usage.unfinished(group=METER_GROUP) == 0 and not manifests and (home / "run" / "meter.sock").exists():
            return
        assert process.poll() is None, (home / "meter.log").read_text()
        await asyncio.sleep(0.05)
    pytest.fail(f"usage was not metered:\n{(home / 'meter.log').read_text()}")


class TestMeterProcess:
    async def test_writes_one_row_for_each_request_when_killed(
        self, redis: Redis, valkey_url: str, usage: Any, tmp_path: Path
    ) -> None:
        await usage.add(40)
        with meter_process(tmp_path, valkey_url, fault="meter.after_insert") as process:
            assert wait_for_exit(process, tmp_path) == -signal.SIGKILL
        await usage.add(2)
        with meter_process(tmp_path, valkey_url) as process:
            await wait_until_finished(usage, process, tmp_path)
            client = ChdbClient(path=tmp_path / "run" / "meter.sock")
            # Without FINAL: the token alone has kept the repeated batch out.
            assert client.execute(COUNT) == [{"rows": 42, "requests": 42}]
            process.send_signal(signal.SIGTERM)
            assert wait_for_exit(process, tmp_path) == 0
        with pytest.raises(ClickHouseUnavailable):
            client.execute(COUNT)

    async def test_refuses_to_share_its_data_with_a_second_meter(
        self, redis: Redis, valkey_url: str, usage: Any, tmp_path: Path
    ) -> None:
        await usage.add(1)
        with meter_process(tmp_path, valkey_url) as first:
            await wait_until_finished(usage, first, tmp_path)
            with meter_process(tmp_path, valkey_url) as second:
                assert wait_for_exit(second, tmp_path) == 1
            assert "one owner" in (tmp_path / "meter.log").read_text()
            assert ChdbClient(path=tmp_path / "run" / "meter.sock").execute(COUNT)[0]["rows"] == 1
