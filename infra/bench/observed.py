"""What processes and the store hold at a moment, and whether that is the same as before. Called by bench `soak`.

Invariant: what grows by a rule that is no leak (the store keeps answers for their time) is told and not judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stores.redis import Client

MIB = 1024 * 1024
GROWN_BYTES_MAX = 16 * MIB  # allocators round up; a leak of 2 KiB a stream shows over 10,000 streams
HELD_BYTES_MAX = 32 * 1024  # by a connection that is open
DESCRIPTORS_MAX = 5
CLIENTS_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Resident bytes and open descriptors by process, and the store's clients, keys and bytes."""

    streams: int
    resident: Mapping[str, int]
    descriptors: Mapping[str, int]
    clients: int
    store_keys: int
    store_bytes: int


async def sample(*, pids: Mapping[str, int], redis: Client, streams: int) -> Sample:
    """Now. Raises OSError when a process has ended, redis.exceptions.RedisError."""
    memory, clients = await redis.info("memory"), await redis.info("clients")
    return Sample(
        streams=streams,
        resident={name: resident_bytes(pid) for name, pid in pids.items()},
        descriptors={name: open_descriptors(pid) for name, pid in pids.items()},
        clients=int(clients["connected_clients"]),
        store_keys=int(await redis.dbsize()),
        store_bytes=int(memory["used_memory"]),
    )


def resident_bytes(pid: int) -> int:
    """VmRSS (proc(5)). Raises OSError when the process has ended, ValueError when it is a zombie."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"process {pid} has no memory any more")


def open_descriptors(pid: int) -> int:
    """Raises OSError when the process has ended."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def growth(before: Sample, after: Sample, *, held: int = 0) -> list[str]:
    """What is not flat, in words; empty when all is. The store's own memory is not looked at: it keeps by time.

    `held`: connections that were held open at once meanwhile; what they needed the allocator may keep for the next.
    """
    most = GROWN_BYTES_MAX + held * HELD_BYTES_MAX
    found = []
    for name, size in after.resident.items():
        more = size - before.resident[name]
        if name != "valkey" and more > most:
            each = more / max(after.streams - before.streams, 1)
            found.append(f"memory of {name} grew by {more / MIB:.1f} MiB, {each:.0f} bytes a stream")
    for name, count in after.descriptors.items():
        if count > before.descriptors[name] + DESCRIPTORS_MAX:
            found.append(f"{name} has {count} descriptors open, {before.descriptors[name]} before")
    if after.clients > before.clients + CLIENTS_MAX:
        found.append(f"the store has {after.clients} clients, {before.clients} before")
    return found


def table_rows(samples: Sequence[Sample]) -> list[tuple[str, str]]:
    """One row a quantity, the samples from left to right."""
    rows = [("after streams", " → ".join(f"{one.streams:,}" for one in samples))]
    for name in samples[0].resident:
        rows.append((f"{name}, MiB", " → ".join(f"{one.resident[name] / MIB:.1f}" for one in samples)))
        rows.append((f"{name}, descriptors", " → ".join(str(one.descriptors[name]) for one in samples)))
    rows.append(("store's clients", " → ".join(str(one.clients) for one in samples)))
    rows.append(("store's keys", " → ".join(f"{one.store_keys:,}" for one in samples)))
    rows.append(("store, MiB (kept by time)", " → ".join(f"{one.store_bytes / MIB:.1f}" for one in samples)))
    return rows
