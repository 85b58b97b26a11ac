"""A process that listens nowhere shows that it lives by touching a file: `$WEIR_HOME/run/NAME.pulse`.

Touched by the settler, the Celery worker and its beat, from the loop that does their work; looked at by the local
supervisor, or by any probe that compares the file's time with the clock. Invariant: no failure to touch it reaches
the work: a full disk does not end a process that could go on.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from stores.stopping import stopped_within

PULSE_SECONDS = 2.0

log = logging.getLogger("weir.pulse")


def pulse_file(*, home: Path, name: str) -> Path:
    """Where the process of this name shows that it lives. `home` is WEIR_HOME."""
    return home / "run" / f"{name}.pulse"


def touch(*, path: Path) -> None:
    """Shows it once. Where there is no `run` folder nobody looks, and nothing is done."""
    if not path.parent.is_dir():
        return
    try:
        path.touch(mode=0o600)
    except OSError as error:
        log.warning("the pulse %s cannot be touched: %s", path.name, error.strerror)


async def keep_touching(*, path: Path, stop: asyncio.Event) -> None:
    """Shows it every PULSE_SECONDS until `stop`: the loop it runs on turns."""
    while not stop.is_set():
        touch(path=path)
        await stopped_within(stop, seconds=PULSE_SECONDS)
