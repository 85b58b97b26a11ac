"""The platform on servers that somebody else runs: used where a URL names them, and nothing local in their place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import psycopg
import pytest
from redis import Redis

from controlplane.env import ROOT
from controlplane.local.model import MODEL, committed_directory
from controlplane.local.ports import find_free
from controlplane.local.stores import open_s3
from controlplane.local.testing import Stores
from infra.bench.instance import Instance, environment_of
from tests.e2e.api import Api

# The simulated engine, but on TCP, as a server elsewhere would be.
ENGINE = """
import sys
from pathlib import Path
import uvicorn
from stores.system import SystemClock
from workers.engines.simulated.app import SimulatedApp
from workers.engines.simulated.engine import SimulatedEngine
from workers.engines.simulated.model import LocalModel
from workers.engines.simulated.settings import SimulatedSettings
app = SimulatedApp(engine=SimulatedEngine(SimulatedSettings()), model=LocalModel.load(Path(sys.argv[1])),
                   served=sys.argv[2], clock=SystemClock())
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[3]), log_level="warning")
"""
ENGINE_SECONDS = 60.0
COMMAND_SECONDS = 240


@pytest.fixture(scope="module")
def engine_url() -> Iterator[str]:
    port = find_free()
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}"}
    command = [sys.executable, "-c", ENGINE, str(committed_directory(root=ROOT)), MODEL, str(port)]
    process = subprocess.Popen(command, cwd=ROOT, env=env)
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + ENGINE_SECONDS
        while not _answers(f"{url}/v1/models"):
            assert process.poll() is None, "the engine has ended"
            assert time.monotonic() < until, "the engine does not answer"
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=30)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


@pytest.fixture(scope="module")
def servers(stores: Stores, engine_url: str) -> dict[str, str]:
    return {
        "DATABASE_URL": stores.postgres_url(),
        "REDIS_URL": stores.valkey_url(),
        "S3_URL": stores.s3_url(),
        "ENGINE_URL": engine_url,
    }


@pytest.fixture(scope="module")
def instance(servers: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """A platform that was given all four URLs by its environment."""
    home = tmp_path_factory.mktemp("own")
    with ExitStack() as stack:
        stack.callback(command, home, servers, "down")
        started = command(home, servers, "up", "--detach", "--until-pid", str(os.getpid()))
        assert started.returncode == 0, started.stdout + started.stderr
        yield Instance(home)


def command(home: Path, servers: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**environment_of(home=home, engine=None, base=os.environ), **servers}
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )


class TestOwnServers:
    def test_starts_nothing_in_their_place(self, instance: Instance) -> None:
        roles = {process.role for process in instance.processes()}
        assert roles == {"worker", "meter", "settler", "gateway", "celery", "beat"}
        assert not {"postgres", "valkey", "s3"} & {path.name for path in (instance.home / "data").iterdir()}

    def test_serves_from_them(self, instance: Instance, servers: dict[str, str]) -> None:
        demo = instance.demo
        api = Api(str(demo["base_url"]), str(demo["api_key"]))
        messages = [{"role": "user", "content": "Say a word."}]
        answer = api.post("/chat/completions", {"model": MODEL, "messages": messages, "max_tokens": 8})
        assert answer.status_code == 200, answer.text
        assert json.loads(answer.text)["usage"]["completion_tokens"] > 0
        with psycopg.connect(servers["DATABASE_URL"]) as connection:
            names = [row[0] for row in connection.execute("SELECT name FROM tenants_tenant ORDER BY name")]
        assert names == ["Acme", "Basic Bakery"]
        with Redis.from_url(servers["REDIS_URL"]) as redis:
            assert redis.hkeys("w:models") == [MODEL.encode()]
        client, bucket = open_s3(url=servers["S3_URL"])
        until = time.monotonic() + ENGINE_SECONDS  # the evaluation log is written after the answer
        while not client.list_objects_v2(Bucket=bucket).get("KeyCount"):
            assert time.monotonic() < until, "no evaluation log of a tenant that opted in"
            time.sleep(0.2)

    def test_are_examined_by_doctor(self, instance: Instance, servers: dict[str, str]) -> None:
        """All is well but what is true of the tests' Redis: it keeps nothing on disk."""
        said = command(instance.home, servers, "doctor").stdout
        good = {line.split()[1] for line in said.splitlines() if line.startswith("✓")}
        assert good == {"PostgreSQL", "broker", "ClickHouse", "S3", "engine"}, said
        assert "set appendonly yes" in said
        assert servers["ENGINE_URL"] in said
