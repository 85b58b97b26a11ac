"""Local mode for tests: real stores, started once per test session and only when a test asks for one.

Called by tests/conftest.py. Invariant: the addresses are known before Django's settings load, the servers
start later: `Stores()` reserves ports and fills the environment, `*_url()` starts what it names. A URL in
TEST_DATABASE_URL, TEST_REDIS_URL or TEST_S3_URL is used as it is and nothing is started for it.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from dataclasses import replace
from pathlib import Path

from controlplane.local import stores
from controlplane.local.children import ChildSpec, LocalServer
from controlplane.local.ports import find_free
from controlplane.local.postgres import Cluster

_PASSWORD = "only-for-tests"  # noqa: S105 - guards an empty database of one test run
# Durability is not what these tests are about, and fsync is most of their time.
_BUCKET = "weir-test"
_FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class Stores:
    """The stores of one test session, in one temporary directory."""

    def __init__(self) -> None:
        self._servers: dict[str, LocalServer] = {}
        self._home: Path | None = None
        ports = self._ports = _reserve(10)
        access, secret = "weirtest", "weirtestsecret"
        self._keys = (access, secret)
        self._urls = {
            "postgres": os.environ.get("TEST_DATABASE_URL") or stores.postgres_url(port=ports[0], password=_PASSWORD),
            "valkey": os.environ.get("TEST_REDIS_URL") or stores.valkey_url(port=ports[1], password=None),
            "s3": os.environ.get("TEST_S3_URL")
            or stores.s3_url(port=ports[2], access_key=access, secret_key=secret, bucket=_BUCKET),
        }
        self._given = {
            "postgres": "TEST_DATABASE_URL" in os.environ,
            "valkey": "TEST_REDIS_URL" in os.environ,
            "s3": "TEST_S3_URL" in os.environ,
        }

    def fill_environment(self) -> None:
        """Points settings at these stores, whether they run yet or not."""
        os.environ["DATABASE_URL"] = self._urls["postgres"]
        os.environ["REDIS_URL"] = self._urls["valkey"]
        os.environ["S3_URL"] = self._urls["s3"]

    def postgres_url(self) -> str:
        """DATABASE_URL of a PostgreSQL that runs."""
        return self._ensure("postgres")

    def valkey_url(self) -> str:
        """REDIS_URL of a Valkey that runs."""
        return self._ensure("valkey")

    def s3_url(self) -> str:
        """S3_URL of an S3 server that runs; its bucket exists."""
        return self._ensure("s3")

    def stop(self) -> None:
        """Stops what was started and removes its data."""
        for server in reversed(self._servers.values()):
            server.stop()
        self._servers.clear()
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)

    def _ensure(self, name: str) -> str:
        if not self._given[name] and name not in self._servers:
            home = self._make_home()
            # Nobody wants the data afterwards, and SeaweedFS would take 15 s to stop in order.
            spec = replace(self._spec(name, home), stop_signal=signal.SIGKILL)
            server = LocalServer(spec=spec, log=home / f"{name}.log")
            self._servers[name] = server
            server.start()
        return self._urls[name]

    def _make_home(self) -> Path:
        if self._home is None:
            self._home = Path(tempfile.mkdtemp(prefix="weir-test-"))
            self._home.chmod(0o711)  # PostgreSQL may run as another user
        return self._home

    def _spec(self, name: str, home: Path) -> ChildSpec:
        ports = self._ports
        if name == "postgres":
            cluster = Cluster.choose(wanted=home / "postgres", digest=home.name, password=_PASSWORD, settings=_FAST)
            cluster.ensure_initialised()
            return stores.postgres(cluster=cluster, port=ports[0])
        if name == "valkey":
            return stores.valkey(data=home / "valkey", port=ports[1], password=None, persistent=False)
        access, secret = self._keys
        return stores.seaweed(
            data=home / "s3",
            sockets=home,
            ports=_s3_ports(ports[2:]),
            access_key=access,
            secret_key=secret,
            bucket=_BUCKET,
        )


def _s3_ports(ports: list[int]) -> stores.S3Ports:
    s3, s3_grpc, master, master_grpc, volume, volume_grpc, filer, filer_grpc = ports
    return stores.S3Ports(
        s3=s3,
        s3_grpc=s3_grpc,
        master=master,
        master_grpc=master_grpc,
        volume=volume,
        volume_grpc=volume_grpc,
        filer=filer,
        filer_grpc=filer_grpc,
    )


def _reserve(count: int) -> list[int]:
    ports: list[int] = []
    while len(ports) < count:
        ports.append(find_free(taken=ports))
    return ports
