"""The processes of bench `stream`: a private platform whose worker has its engine inside itself, and the bare peer.

Called by the registry. The platform is started on an engine elsewhere that is then taken away: its own worker stands by
without an engine, and one with the command of a worker and an engine of the bench's own serves the same pool. So the
models, keys, prices and limits are the platform's, and no process of it runs other code than a user's does.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from controlplane.local import probes
from controlplane.local.model import MODEL
from infra.bench.instance import Instance, private_instance
from infra.bench.load import Target
from infra.bench.servers import bare_server, serving
from infra.bench.stream import STARTS_PER_S, Side
from stores.redis import Client, open_redis

WORKER = "bench-stream"
SEQUENCES_MAX = "1024"


@asynccontextmanager
async def inline_platform() -> AsyncIterator[tuple[Instance, int]]:
    """A private platform served by a worker with `inline_engine`, and that worker's pid.

    Raises InstanceFailed, NotReady.
    """
    with ExitStack() as stack:
        async with bare_server(model=MODEL) as (port, _):
            given = {"ENGINE_URL": f"http://127.0.0.1:{port}"}
            instance = stack.enter_context(private_instance(engine="simulated", settings=given))
        env = instance.environment_of_role("worker")
        env |= {"WEIR_WORKER_ID": WORKER, "WEIR_ENGINE_MAX_NUM_SEQS": SEQUENCES_MAX}
        command = (sys.executable, "-m", "infra.bench.inline_engine")
        probe = probes.worker(redis_url=env["REDIS_URL"], worker_id=WORKER)
        async with serving(command, name=WORKER, env=env, probe=probe) as pid:
            yield instance, pid


@asynccontextmanager
async def redis_of(instance: Instance) -> AsyncIterator[Client]:
    """A client on a platform's store. Raises InstanceFailed, OSError."""
    redis = open_redis(instance.environment_of_role("worker")["REDIS_URL"])
    try:
        yield redis
    finally:
        await redis.aclose(close_connection_pool=True)


@asynccontextmanager
async def stage() -> AsyncIterator[tuple[Side, Side, Path]]:
    """Weir, its peer, and the folder of the answers that the peer sends. Raises InstanceFailed, NotReady."""
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as name:
        events = Path(name)
        async with inline_platform() as (instance, worker), bare_server(model=MODEL, events=events) as (port, bare):
            pids = {"worker": worker, "valkey": instance.pid_of("valkey"), "gateway": instance.pid_of("gateway")}
            weir = Side(target=instance.unguarded_target(model=MODEL), pids=pids, starts_per_s=STARTS_PER_S)
            peer = Side(target=Target(name="bare", model=MODEL, port=port), pids={"bare": bare})
            yield weir, peer, events
