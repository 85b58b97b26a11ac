"""A Valkey for a bench alone, started as local mode starts one, stopped and removed with the block.

Called by the registry. Invariant: the store is durable as a user's is; a quicker one would measure something else.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from controlplane.local import stores
from controlplane.local.children import LocalServer
from controlplane.local.ports import find_free
from stores.redis import Client, open_redis


@asynccontextmanager
async def private_valkey() -> AsyncIterator[Client]:
    """A client on an empty Valkey. Raises NotReady with the end of its log when it does not serve."""
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as name:
        home, port = Path(name), find_free(taken=[])
        spec = stores.valkey(data=home / "valkey", port=port, password=None)
        server = LocalServer(spec=spec, log=home / "valkey.log")
        await asyncio.to_thread(server.start)
        redis = open_redis(stores.valkey_url(port=port, password=None))
        try:
            yield redis
        finally:
            await redis.aclose(close_connection_pool=True)
            await asyncio.to_thread(server.stop)
