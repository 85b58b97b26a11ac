"""A Valkey that one test has for itself, to kill and to bring back with what it had."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from redis.asyncio import Redis

from controlplane.local import stores
from controlplane.local.children import LocalServer
from controlplane.local.ports import find_free


@contextmanager
def valkey_of_its_own(home: Path) -> Iterator[LocalServer]:
    """Persistent, and stopped by SIGKILL only: nothing that is on disk may be lost by that."""
    spec = stores.valkey(data=home / "valkey", port=find_free(taken=[]), password=None)
    server = LocalServer(spec=replace(spec, stop_signal=signal.SIGKILL), log=home / "valkey.log")
    server.start()
    try:
        yield server
    finally:
        server.stop()


async def on_disk(redis: Redis) -> None:
    """What is synced each second is answered before it is written where the disk is busy: never a test's point."""
    await redis.set("written", 1)
    await redis.waitaof(1, 0, 0)
