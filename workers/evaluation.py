"""Evaluation logs: prompt and answer as one S3 object, for tenants that opted in. Called by `attempt` after the end.

Invariants: never in the answer's way; the key that a usage record names was accepted here before the end was written;
what is accepted goes to disk first, so that a store that is down, or a killed worker, loses nothing that was spooled.
Policy when full: over `spool_bytes_max` on disk, or `WAITING_MAX` not yet on disk, new logs are dropped and counted.
"""

import asyncio
import hashlib
import os
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import orjson
import structlog

from contracts.jobs import Ticket
from stores.objects import Objects, ObjectStoreError

WAITING_MAX = 256
RETRY_SECONDS = (1.0, 5.0, 15.0, 60.0)
CONTENT_TYPE = "application/json"

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
    """Bounded on disk and in memory. `objects` None: no store is set, nothing is accepted."""

    def __init__(self, *, objects: Objects | None, spool: Path, spool_bytes_max: int, object_bytes_max: int) -> None:
        self._objects = objects
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
        if self._objects is None or size > min(room, self._object_bytes_max) or self._promised >= WAITING_MAX:
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
        if self._objects is None:
            return
        self._spool.mkdir(parents=True, exist_ok=True)
        self._spooled_bytes = sum(path.stat().st_size for path in self._spool.glob("*.json"))
        async with asyncio.TaskGroup() as group:
            uploads = asyncio.Event()
            uploads.set()  # what the last life left
            group.create_task(self._spool_arrivals(uploads))
            group.create_task(self._upload(uploads))

    async def flush(self) -> None:
        """Put on disk what was accepted (at shutdown)."""
        while self._waiting:
            await self._spool_next()

    async def _spool_arrivals(self, uploads: asyncio.Event) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                await self._spool_next()
            uploads.set()

    async def _spool_next(self) -> None:
        key, body = self._waiting.popleft()
        try:
            await asyncio.to_thread(_write_whole, self._spool / quote(key, safe=""), body)
            self._spooled_bytes += len(body)
        except OSError as error:
            self.dropped += 1
            log.warning("evaluation_spool_failed", error=str(error), dropped=self.dropped)
        finally:
            self.forget(size=len(body))

    async def _upload(self, uploads: asyncio.Event) -> None:
        failures = 0
        while True:
            try:
                async with asyncio.timeout(RETRY_SECONDS[min(failures, len(RETRY_SECONDS)) - 1] if failures else None):
                    await uploads.wait()
            except TimeoutError:
                pass  # time to try again
            uploads.clear()
            if await self._upload_all():
                failures = 0
            else:
                failures += 1

    async def _upload_all(self) -> bool:
        """Upload what is spooled, oldest first. False when the store refused and the rest must wait."""
        assert self._objects is not None
        for path in sorted(self._spool.glob("*.json"), key=lambda item: item.stat().st_mtime_ns):
            try:
                self._spooled_bytes -= await asyncio.to_thread(_move, path, self._objects)
            except ObjectStoreError as error:
                log.warning("evaluation_upload_waits", error=str(error), bytes=self._spooled_bytes)
                return False
        return True


def _move(path: Path, objects: Objects) -> int:
    """From the spool to the store; the bytes that are free again. Raises ObjectStoreError."""
    body = path.read_bytes()
    objects.put(key=unquote(path.name), body=body, content_type=CONTENT_TYPE)
    path.unlink(missing_ok=True)
    return len(body)


def _write_whole(path: Path, body: bytes) -> None:
    """A reader sees the whole file or none."""
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
