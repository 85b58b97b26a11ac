"""Uploads of evaluation logs in a process of their own. `Uploader` is the worker's side; `main` is the process.

boto3 holds Python's lock for most of an upload, and while an upload held it no token moved. The process is nice
(`NICENESS`): it gets what the serving leaves of the cores. Invariant: it ends when its stdin closes, hence with the
worker, however that dies; what it has not said to be stored is still in the spool and is uploaded again.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

from stores.objects import Objects, ObjectStoreError

NICENESS = 10
CONTENT_TYPE = "application/json"
BATCH_MAX = 32
ANSWER_SECONDS = 300.0  # for one batch: each upload is bounded by `stores.objects`
ROOT = Path(__file__).resolve().parent.parent


class Uploader:
    """The process, started at the first batch and after it died."""

    def __init__(self, *, s3_url: str) -> None:
        self._s3_url = s3_url
        self._child: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None and self._child.returncode is None else None

    async def move(self, paths: Sequence[Path]) -> None:
        """Move files from the spool to the store, in order. At most `BATCH_MAX`.

        Raises ObjectStoreError when one cannot be stored: it and those behind it are as before.
        """
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                refusal = await self._ask([os.fspath(path) for path in paths])
        except (OSError, ValueError, TimeoutError) as error:
            await self.close()
            raise ObjectStoreError(f"the uploading process failed: {type(error).__name__}") from error
        except BaseException:
            await self.close()
            raise
        if refusal:
            raise ObjectStoreError(refusal)

    async def _ask(self, paths: list[str]) -> str:
        child = await self._running()
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps(paths).encode() + b"\n")
        await child.stdin.drain()
        refusal: str = json.loads(await child.stdout.readline())  # a dead process says nothing: ValueError
        return refusal

    async def _running(self) -> asyncio.subprocess.Process:
        if self.pid is None or self._child is None:
            self._child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "workers.uploads",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "S3_URL": self._s3_url, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # a Ctrl-C for the worker is the worker's to pass on
            )
        return self._child

    async def close(self) -> None:
        """End the process."""
        child, self._child = self._child, None
        if child is not None and child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()


def main() -> None:
    """Reads a line of paths, moves the files, answers with a line; until stdin closes."""
    os.nice(NICENESS)
    objects = Objects.open(os.environ["S3_URL"])
    for line in sys.stdin:
        refusal = _move_all(objects, [Path(name) for name in json.loads(line)])
        sys.stdout.write(json.dumps(refusal) + "\n")
        sys.stdout.flush()


def _move_all(objects: Objects, paths: Sequence[Path]) -> str:
    """Why one could not be moved; empty when all were."""
    for path in paths:
        try:
            objects.put(key=unquote(path.name), body=path.read_bytes(), content_type=CONTENT_TYPE)
        except (ObjectStoreError, OSError) as error:
            return str(error)
        path.unlink(missing_ok=True)
    return ""


if __name__ == "__main__":
    main()
