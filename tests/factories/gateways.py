"""A whole platform with two gateway processes, for what one process cannot show: started by `manage.py up`, in a state
directory of its own, with the simulated engine at a pace that leaves time to look.

Invariant: both gateways are the program that `up` starts, on the same stores; all is stopped with the block.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis

from controlplane.local import probes
from controlplane.local.children import ChildSpec, LocalServer
from controlplane.local.ports import find_free
from gateway.surface.limits import REALTIME_FRAME_BYTES_MAX
from infra.bench import instance as instances
from infra.bench.instance import Instance, environment_of, private_instance
from stores.redis import open_redis
from stores.system import SystemClock
from tests.factories.customers import ROOT, Customers

# Slow: a stream of a few hundred tokens lasts until the test has seen what it came for.
PACE = {"WEIR_SIM_PREFILL_TOKENS_PER_SECOND": "0", "WEIR_SIM_DECODE_TOKENS_PER_SECOND": "15"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoGateways:
    """`urls` end in /v1. `customers` makes tenants of the platform. `started_at`: Unix seconds, before any request."""

    instance: Instance
    urls: tuple[str, str]
    model: str
    customers: Customers
    started_at: int

    def redis(self) -> Redis:
        """A client of the platform's own Redis; the caller closes it."""
        return open_redis(settings_of(self.instance.home)["REDIS_URL"])

    def pid_of(self, name: str) -> int:
        """The pid of a child by its name."""
        return next(item.pid for item in self.instance.processes() if item.name == name)


def settings_of(home: Path) -> dict[str, str]:
    """`$WEIR_HOME/env`."""
    lines = (line.partition("=") for line in (home / "env").read_text().splitlines() if "=" in line)
    return {name: value.strip("'") for name, _, value in lines}


@contextmanager
def two_gateways() -> Iterator[TwoGateways]:
    """Raises InstanceFailed, NotReady with the logs of what did not start."""
    before = dict(instances.SIMULATED_PACE)
    started_at = SystemClock().now_ms() // 1000
    instances.SIMULATED_PACE.update(PACE)
    try:
        with (
            private_instance(engine="simulated") as instance,
            another_gateway(instance, name="gateway-2") as url,
            Customers(_environment(instance, name="gateway-2")) as customers,
        ):
            yield TwoGateways(
                instance=instance,
                urls=(str(instance.demo["base_url"]), url),
                model=settings_of(instance.home)["WEIR_MODEL"],
                customers=customers,
                started_at=started_at,
            )
    finally:
        instances.SIMULATED_PACE.clear()
        instances.SIMULATED_PACE.update(before)


@contextmanager
def another_gateway(
    instance: Instance, *, name: str, application: str = "controlplane.asgi:application"
) -> Iterator[str]:
    """One more gateway on the stores of a platform, beside those that `up` started: its URL, which ends in /v1."""
    port = find_free()
    spec = _gateway(name, application, port, _environment(instance, name=name))
    server = LocalServer(spec=spec, log=instance.home / "logs" / f"{name}.log")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.stop()


def _environment(instance: Instance, *, name: str) -> dict[str, str]:
    return environment_of(home=instance.home, engine=None, base=os.environ) | {
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "platform"), str(ROOT)]),
        "WEIR_GATEWAY_ID": name,
    }


def _gateway(name: str, application: str, port: int, environment: dict[str, str]) -> ChildSpec:
    """As `controlplane.local.plan` starts the first."""
    command = (
        *(sys.executable, "-m", "uvicorn", application),
        *("--host", "127.0.0.1", "--port", str(port), "--loop", "uvloop"),
        *("--no-access-log", "--no-server-header", "--no-proxy-headers"),
        *("--http", "gateway.edge.http:HttpProtocol", "--ws", "gateway.edge.websocket:WebSocketProtocol"),
        *("--ws-max-size", str(2 * REALTIME_FRAME_BYTES_MAX), "--timeout-graceful-shutdown", "2"),
    )
    probe = probes.http(port=port, path="/health/ready")
    return ChildSpec(
        name=name, role="gateway", command=command, env=environment, cwd=ROOT, probe=probe, port=port,
        stop_deadline=10.0,
    )  # fmt: skip
