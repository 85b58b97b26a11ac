"""Evaluation logs: prompt and answer as one S3 object, for tenants that opted in. Called by `attempt` after the end.

Invariants: never in the answer's way; the key that a usage record names was accepted here before the end was written;
what is accepted goes to disk first, so that a store that is down, or a killed worker, loses nothing that was spooled.
Policy when full: over `spool_bytes_max` on disk, or `WAITING_MAX` not yet on disk, new logs are dropped and counted.
"""

import asyncio
import hashlib
import os
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
import structlog

from contracts.jobs import Ticket
from stores.objects import ObjectStoreError
from workers.uploads import BATCH_MAX, Uploader

WAITING_MAX = 256
LINGER_SECONDS = 0.5  # what ends together is uploaded together: the spool is listed once
RETRY_SECONDS = (1.0, 5.0, 15.0, 60.0)

log = structlog.get_logger(__name__)


def evaluation_key(ticket: Ticket) -> str:
    """Object key: a bucket of the tenant's hash first, so that tenants spread, then tenant, UTC day, request."""
    shard = hashlib.sha256(ticket.tenant_id.encode()).hexdigest()[:2]
    day = datetime.fromtimestamp(ticket.admitted_at_ms / 1000, tz=UTC).strftime("%Y/%m/%d")
    return f"evaluation/{shard}/{ticket.tenant_id}/{day}/{ticket.request_id}.json"


def evaluation_document(ticket: Ticket, *, answer: list[dict[str, str]], facts: dict[str, Any]) -> bytes:
    """The object: what was asked, what was released (after the guard), and how it ended."""
    return orjson.dumps(
        {
            "v": 1,
            "request_id": ticket.request_id,
            "tenant_id": ticket.tenant_id,
            "project_id": ticket.project_id,
            "model": ticket.model,
            "endpoint": ticket.endpoint.value,
            "admitted_at_ms": ticket.admitted_at_ms,
            "request": orjson.loads(ticket.body),
            "answer": answer,
            **facts,
        }
    )


class EvaluationLog:
    """Bounded on disk and in memory. `uploader` None: no store is set, nothing is accepted."""

    def __init__(self, *, uploader: Uploader | None, spool: Path, spool_bytes_max: int, object_bytes_max: int) -> None:
        self._uploader = uploader
        self._spool = spool
        self._spool_bytes_max = spool_bytes_max
        self._object_bytes_max = object_bytes_max
        self._spooled_bytes = 0
        self._promised_bytes = 0
        self._promised = 0
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._arrived = asyncio.Event()
        self.dropped = 0

    def accept(self, *, size: int) -> bool:
        """Whether an object of `size` bytes will be kept. A yes must be followed by `put` or `forget`."""
        room = self._spool_bytes_max - self._spooled_bytes - self._promised_bytes
        if self._uploader is None or size > min(room, self._object_bytes_max) or self._promised >= WAITING_MAX:
            self.dropped += 1
            log.warning("evaluation_log_dropped", size=size, dropped=self.dropped)
            return False
        self._promised_bytes += size
        self._promised += 1
        return True

    def put(self, *, key: str, body: bytes) -> None:
        """Keep an accepted object. Returns at once."""
        self._waiting.append((key, body))
        self._arrived.set()

    def forget(self, *, size: int) -> None:
        """The accepted object will not come (its request is no longer ours)."""
        self._promised_bytes -= size
        self._promised -= 1

    async def run(self) -> None:
        """Spool and upload until cancelled."""
        if self._uploader is None:
            return
        self._spool.mkdir(parents=True, exist_ok=True)
        self._spooled_bytes = sum(path.stat().st_size for path in self._spool.glob("*.json"))
        uploads = asyncio.Event()
        uploads.set()  # what the last life left
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._spool_arrivals(uploads))
                group.create_task(self._upload(uploads))
        finally:
            await self._uploader.close()

    async def flush(self) -> None:
        """Put on disk what was accepted (at shutdown)."""
        if self._waiting:
            await self._spool_waiting()

    async def _spool_arrivals(self, uploads: asyncio.Event) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            if self._waiting:
                await self._spool_waiting()
            uploads.set()

    async def _spool_waiting(self) -> None:
        arrived = list(self._waiting)
        self._waiting.clear()
        written = 0
        try:
            written = await asyncio.to_thread(_write_all, self._spool, arrived)
        finally:
            for number, (_, body) in enumerate(arrived):
                self.forget(size=len(body))
                self._spooled_bytes += len(body) if number < written else 0
        if written < len(arrived):
            self.dropped += len(arrived) - written
            log.warning("evaluation_spool_failed", dropped=self.dropped)

    async def _upload(self, uploads: asyncio.Event) -> None:
        failures = 0
        while True:
            try:
                async with asyncio.timeout(RETRY_SECONDS[min(failures, len(RETRY_SECONDS)) - 1] if failures else None):
                    await uploads.wait()
            except TimeoutError:
                pass  # time to try again
            await asyncio.sleep(LINGER_SECONDS)
            uploads.clear()
            if await self._upload_all():
                failures = 0
            else:
                failures += 1

    async def _upload_all(self) -> bool:
        """Upload what is spooled, oldest first. False when the store refused and the rest must wait."""
        assert self._uploader is not None
        paths = sorted(self._spool.glob("*.json"), key=lambda item: item.stat().st_mtime_ns)
        for first in range(0, len(paths), BATCH_MAX):
            sizes = {path: path.stat().st_size for path in paths[first : first + BATCH_MAX]}
            try:
                await self._uploader.move(list(sizes))
            except ObjectStoreError as error:
                log.warning("evaluation_upload_waits", error=str(error), bytes=self._spooled_bytes)
                return False
            finally:
                self._spooled_bytes -= sum(size for path, size in sizes.items() if not path.exists())
        return True


def _write_all(spool: Path, objects: Sequence[tuple[str, bytes]]) -> int:
    """How many were written, in order, before the disk refused one."""
    for number, (key, body) in enumerate(objects):
        try:
            _write_whole(spool / quote(key, safe=""), body)
        except OSError as error:
            log.warning("evaluation_log_not_written", error=str(error))
            return number
    return len(objects)


def _write_whole(path: Path, body: bytes) -> None:
    """A reader sees the whole file or none."""
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
