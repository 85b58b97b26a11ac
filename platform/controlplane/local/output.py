"""Local mode: where the lines for the person at the terminal go. Called by `up`, `down`, `ps` and `doctor`.

Invariant: a terminal, a file or a pipe gets the same lines, unbroken; and for as long as the platform runs, an output
that takes no more (a full disk, a reader that is gone) costs the line and nothing else.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def open_console() -> Console:
    """The terminal, or the file or pipe in its place: there no line is broken, and no character refused."""
    return Console(highlight=False, soft_wrap=True)


class _Tolerant(io.RawIOBase):
    """A file descriptor that takes every write: a full disk or a closed pipe costs the line, not the platform."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: ReadableBuffer, /) -> int:
        content = memoryview(data)
        try:
            return os.write(self._descriptor, content)
        except OSError:
            return content.nbytes


def tolerate_output() -> None:
    """From here on nothing that is printed can fail."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.flush()
        lossy = _Tolerant(sys.stdout.fileno())
        sys.stdout = io.TextIOWrapper(lossy, encoding=sys.stdout.encoding, errors="replace", write_through=True)
