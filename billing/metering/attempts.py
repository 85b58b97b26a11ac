"""The attempt logs of this machine's workers into ClickHouse's `attempt_raw`, line by line, as they grow.

Run beside the meter. A worker drops its oldest file at its bound; what was collected before is kept. Invariants: where
a file was read up to is noted after its lines were inserted, so a crash repeats lines, which collapse there, and loses
none; a file is known by its first line, whatever it is renamed to. Fails open: nothing of it holds up the meter.
"""

import asyncio
import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO
from uuid import UUID

import orjson

from stores.clickhouse import ClickHouse, ClickHouseError
from stores.stopping import stopped_within

TABLE = "attempt_raw"
COLUMNS = (
    "request_id", "attempt", "fence", "tenant_id", "model_name", "pool", "worker_id", "ended_at", "prompt_tokens",
    "cached_tokens", "completion_tokens", "prefill_us", "decode_us", "outcome", "error_code",
)  # fmt: skip
EVERY_SECONDS = 5.0
CHUNK_BYTES = 4 << 20
_NOTES = "collected.json"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

log = logging.getLogger("weir.billing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Whole lines of one file, [start, end) in bytes."""

    start: int
    end: int
    lines: list[bytes]


class AttemptCollector:
    """Reads every log in `folder`. One collector for a folder."""

    def __init__(self, *, folder: Path, clickhouse: ClickHouse) -> None:
        self._folder = folder
        self._clickhouse = clickhouse
        self.collected = 0

    async def run(self, *, stop: asyncio.Event) -> None:
        """Collect every EVERY_SECONDS until `stop`."""
        while not await stopped_within(stop, seconds=EVERY_SECONDS):
            try:
                await asyncio.to_thread(self.collect)
            except (ClickHouseError, OSError) as error:
                log.warning("attempt logs are not collected now: %s", error)

    def collect(self) -> int:
        """Insert what was written since the last time; the number of lines. Raises ClickHouseError, OSError."""
        taken, notes = 0, self._read_notes()
        seen: dict[str, int] = {}
        for path in sorted(self._folder.glob("*.jsonl*")):
            try:
                file = path.open("rb")
            except FileNotFoundError:  # renamed or dropped meanwhile: the next round finds it
                return taken
            with file:
                name = _name_of(file)
                if not name:
                    continue
                seen[name] = notes.get(name, 0)
                for chunk in _chunks(file, start=seen[name]):
                    taken += self._insert(name, chunk)
                    seen[name] = chunk.end
                    self._write_notes({**notes, **seen})
        if seen.keys() != notes.keys():
            self._write_notes(seen)
        self.collected += taken
        return taken

    def _insert(self, name: str, chunk: Chunk) -> int:
        rows = [row for row in map(_row, chunk.lines) if row is not None]
        if len(rows) < len(chunk.lines):
            log.error("%d lines of an attempt log cannot be read", len(chunk.lines) - len(rows))
        token = f"attempts/{name}/{chunk.start}-{chunk.end}"
        self._clickhouse.insert(table=TABLE, columns=COLUMNS, rows=rows, token=token)
        return len(rows)

    def _read_notes(self) -> dict[str, int]:
        try:
            notes: dict[str, int] = orjson.loads((self._folder / _NOTES).read_bytes())
        except (FileNotFoundError, orjson.JSONDecodeError):
            return {}  # all is read again, which changes nothing
        return notes

    def _write_notes(self, notes: dict[str, int]) -> None:
        partial = self._folder / f"{_NOTES}.partial"
        partial.write_bytes(orjson.dumps(notes))
        partial.replace(self._folder / _NOTES)


def _name_of(file: BinaryIO) -> str:
    """Of the file's first line; empty while there is none."""
    first = file.readline()
    return hashlib.sha256(first).hexdigest()[:32] if first.endswith(b"\n") else ""


def _chunks(file: BinaryIO, *, start: int) -> Iterator[Chunk]:
    """A line that is not yet whole waits for the next time."""
    while True:
        file.seek(start)
        lines = file.readlines(CHUNK_BYTES)
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()
        if not lines:
            return
        end = start + sum(map(len, lines))
        yield Chunk(start=start, end=end, lines=lines)
        start = end


def _row(line: bytes) -> tuple[Any, ...] | None:
    """None for a line that is no attempt."""
    try:
        fields = orjson.loads(line)
        counts, timings = fields["counts"], fields["timings"]
        return (
            str(UUID(fields["request_id"])),
            int(fields["attempt"]),
            str(fields["fence"]),
            str(fields["tenant_id"]),
            str(fields["model"]),
            str(fields["pool"]),
            str(fields["worker_id"]),
            _EPOCH + timedelta(milliseconds=int(fields["billed_at_ms"])),
            int(counts["prompt"]),
            int(counts["cached"]),
            int(counts["completion"]),
            int(timings["prefill_us"]),
            int(timings["decode_us"]),
            str(fields["outcome"]),
            str(fields["error_code"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
