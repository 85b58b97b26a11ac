"""Local mode: where its files lie. Called by every module of this package; makes no decision but names.

Invariant: everything one clone writes lies under its `.weir/`; everything heavy that clones can share lies
under the user's cache directory and is named by a hash of what it was made from. Two exceptions, each with a
reason: a link with a short path leads to `.weir/` when the clone's path is too long for Unix sockets, and a
PostgreSQL cluster owned by root's stand-in user moves out of a home directory that this user cannot enter.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# sun_path holds 108 bytes; the longest socket name used below it has about 40.
SOCKET_DIR_MAX = 60
_SYNTAX = frozenset("?#%")  # what URLs, and chDB in the path of its data, take for more than a letter


@dataclass(frozen=True, slots=True)
class Layout:
    """The files of one running platform. `root` is the clone, `state` its data directory."""

    root: Path
    state: Path

    @classmethod
    def of_clone(cls, root: Path | None = None) -> Layout:
        """The layout of this clone: `.weir/` below it, or where WEIR_HOME points."""
        clone = root or Path(__file__).resolve().parents[3]
        chosen = os.environ.get("WEIR_HOME")
        return cls(root=clone, state=Path(chosen).resolve() if chosen else clone / ".weir")

    @property
    def run(self) -> Path:
        """Pid files and what children report about themselves."""
        return self.state / "run"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def data(self) -> Path:
        return self.state / "data"

    @property
    def ports_file(self) -> Path:
        return self.state / "ports.json"

    @property
    def secrets_file(self) -> Path:
        return self.state / "secrets.json"

    @property
    def run_file(self) -> Path:
        return self.state / "run.json"

    @property
    def demo_file(self) -> Path:
        return self.state / "demo.json"

    @property
    def env_file(self) -> Path:
        """The URLs and secrets of what runs here, so that `manage.py` typed by hand finds the same stores."""
        return self.state / "env"

    @property
    def supervisor_file(self) -> Path:
        """Who holds this state directory: written when the lock is taken."""
        return self.run / "supervisor.json"

    @property
    def supervisor_log(self) -> Path:
        """What a detached supervisor prints."""
        return self.logs / "supervisor.log"

    @property
    def digest(self) -> str:
        """Eight characters that tell this state directory from another user's or another clone's."""
        return hashlib.sha256(str(self.state).encode()).hexdigest()[:8]

    @property
    def home(self) -> Path:
        """The state directory by a path that Unix sockets and URLs can hold: WEIR_HOME of the children."""
        if len(str(self.run)) <= SOCKET_DIR_MAX and not _SYNTAX.intersection(str(self.state)):
            return self.state
        return Path(tempfile.gettempdir()) / f"weir-{os.getuid()}-{self.digest}"

    def make(self) -> None:
        """Creates the directories. Raises OSError when the disk is full or the clone is read-only."""
        self.state.mkdir(mode=0o711, parents=True, exist_ok=True)
        self.data.mkdir(mode=0o711, exist_ok=True)
        for private in (self.run, self.logs):
            private.mkdir(mode=0o700, exist_ok=True)
        if self.home != self.state:
            self._link_home()

    def remove(self) -> None:
        """Removes the state directory and the short path to it."""
        self.remove_short_path()
        shutil.rmtree(self.state, ignore_errors=True)

    def remove_short_path(self) -> None:
        """Nothing that is stopped needs it; `make` brings it back."""
        if self.home != self.state:
            self.home.unlink(missing_ok=True)

    def _link_home(self) -> None:
        """The short path is a link of ours; somebody else's file of that name is refused, not followed."""
        with suppress(FileExistsError):
            self.home.symlink_to(self.state)
        if self.home.lstat().st_uid != os.getuid() or self.home.resolve() != self.state.resolve():
            raise FileExistsError(17, "another file has the name of the short path to .weir; remove it", str(self.home))


def sweep_short_paths(*, under: Path | None = None) -> list[Path]:
    """Removes this user's short paths that lead nowhere any more, or to what lies below `under`; returns them.

    A platform that was killed, or whose folder was deleted while it ran, could not do it.
    """
    swept = []
    for link in Path(tempfile.gettempdir()).glob(f"weir-{os.getuid()}-{'[0-9a-f]' * 8}"):
        if not link.is_symlink() or link.lstat().st_uid != os.getuid():
            continue
        target = link.readlink()
        if not target.exists() or (under is not None and target.is_relative_to(under)):
            link.unlink(missing_ok=True)
            swept.append(link)
    return swept


def user_cache() -> Path:
    """What clones of one user share: the engine's environment and the converted model."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "weir"


def quote_env(value: str) -> str:
    """A value for a file of settings, as python-dotenv reads it back."""
    return "'" + re.sub(r"([\\'])", r"\\\1", value) + "'"


def write_private(path: Path, text: str) -> None:
    """Writes a file of mode 0600 so that a reader sees the old or the new text, never half of one."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
