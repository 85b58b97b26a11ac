"""Local mode: the children's log files, kept small. Called by the supervisor and by `manage.py logs`.

Invariant: a log and its one predecessor take at most twice LOG_BYTES_MAX. The child appends to a file it
holds open, so the file is copied and then emptied; lines written between the two are lost (accepted: the
copy takes milliseconds, and what must not be lost is not in these logs).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

LOG_BYTES_MAX = 10 * 1024 * 1024


def rotate(*, path: Path, bytes_max: int = LOG_BYTES_MAX) -> bool:
    """Moves the content of an overlong log to NAME.log.1. True when it did."""
    try:
        if path.stat().st_size <= bytes_max:
            return False
    except FileNotFoundError:
        return False
    shutil.copyfile(path, path.with_name(path.name + ".1"))
    os.truncate(path, 0)
    return True


def tail(*, path: Path, lines: int, bytes_max: int = 65_536) -> list[str]:
    """The last lines of a log; empty when there is none."""
    try:
        with path.open("rb") as handle:
            handle.seek(0, os.SEEK_END)
            handle.seek(max(0, handle.tell() - bytes_max))
            return handle.read().decode(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        return []
