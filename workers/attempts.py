"""The attempt log: what each attempt cost, on this machine's disk, before the queue is told. Called by `attempt`.

One JSON line per ended attempt, fsynced in groups. It is the engine's side of reconciliation and never bills by itself
(a line whose job is known means nothing; one whose job was lost is settled from here). Append-only; a full file is
renamed to `.1`, `.2`, … and the oldest beyond `files_max` is dropped. Fails open: a disk that refuses is counted and
logged, and serving goes on.
"""

import asyncio
import dataclasses
import os
from pathlib import Path

import orjson
import structlog

from contracts.jobs import UsageRecord

GROUP_MAX = 1024

_FIELDS = tuple(field.name for field in dataclasses.fields(UsageRecord))

log = structlog.get_logger(__name__)


class AttemptLog:
    """`append` returns when the line is on disk. `run` must be running."""

    def __init__(self, path: Path, *, bytes_max: int, files_max: int) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._lines: asyncio.Queue[tuple[bytes, asyncio.Future[bool]]] = asyncio.Queue(GROUP_MAX)
        self.failures = 0

    async def append(self, record: UsageRecord, *, fence: str) -> bool:
        """Write one line. False when the disk refused."""
        fields = {name: getattr(record, name) for name in _FIELDS}
        line = orjson.dumps({"v": 1, "fence": fence, **fields}, option=orjson.OPT_NON_STR_KEYS)
        written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        await self._lines.put((line + b"\n", written))
        return await written

    async def run(self) -> None:
        """Write groups until cancelled."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            group = [await self._lines.get()]
            while not self._lines.empty():
                group.append(self._lines.get_nowait())
            try:
                await asyncio.to_thread(self._write, b"".join(line for line, _ in group))
                written = True
            except OSError:
                self.failures += len(group)
                log.exception("attempt_log_failed", lines=len(group), failures=self.failures)
                written = False
            for _, future in group:
                if not future.done():
                    future.set_result(written)

    def _write(self, data: bytes) -> None:
        if self._path.exists() and self._path.stat().st_size + len(data) > self._bytes_max:
            self._rotate()
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _rotate(self) -> None:
        for number in range(self._files_max - 1, 0, -1):
            older = self._numbered(number)
            if older.exists():
                older.replace(self._numbered(number + 1))
        self._path.replace(self._numbered(1))
        self._numbered(self._files_max).unlink(missing_ok=True)

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


def read_attempts(path: Path) -> list[dict[str, object]]:
    """Every whole line of one file; a line cut by a crash is left out."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [orjson.loads(line) for line in lines]
