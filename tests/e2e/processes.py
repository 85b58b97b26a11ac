"""Processes of this machine as the kernel lists them: who belongs to a platform, and who of them is left."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from controlplane.local.children import Identity

GONE_SECONDS = 30.0


def family_of(pid: int) -> list[Identity]:
    """A process and all below it."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:  # grows while it is read
        found += [child for child, parent in parents.items() if parent == one]
    return [identity for one in found if (identity := Identity.of(pid=one)) is not None]


def left_of(family: list[Identity]) -> list[Identity]:
    """Who of them still runs; one that was killed a moment ago is given time to be gone."""
    until = time.monotonic() + GONE_SECONDS
    while (left := [one for one in family if one.is_running()]) and time.monotonic() < until:
        time.sleep(0.05)
    return left


def at_home(home: Path) -> set[int]:
    """The processes that were told this state directory."""
    wanted = f"WEIR_HOME={home}".encode()
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.add(int(entry.name))
    return found
