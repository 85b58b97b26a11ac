"""Local mode: what a child process is, and how one is started and stopped. Called by the supervisor and the tests.

Invariant: a child never outlives us. It leads its own process group, so Ctrl-C in the terminal reaches only
the supervisor; the kernel sends it its stop signal when the supervisor dies (PR_SET_PDEATHSIG); and a file
names it by pid and start time, so that what is left after all that is recognised without guessing.

A pid alone is never signalled: `Identity` also compares the start time, because pids are reused.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import stat
import subprocess
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from controlplane.local.paths import write_private

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
# An idle group is looked at this often while it is given time to stop.
_POLL_SECONDS = 0.05


class NotReady(Exception):
    """The child runs but does not serve yet; the text says what is missing."""


Probe = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """One child process: what to run, how to see that it serves, how to stop it. Durations in seconds."""

    name: str
    role: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    probe: Probe
    port: int | None = None
    run_as: str | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    stop_deadline: float = 10.0
    ready_deadline: float = 60.0
    # Names of the children that must serve before this one is started.
    after: tuple[str, ...] = ()
    # Children are stopped in waves, the highest first: the door, then what works behind it, then the stores.
    wave: int = 0
    # A job: it is done when it ends with exit code 0, and is not started again.
    once: bool = False
    # Run once after the child serves and before anything that needs it is started.
    prepare: Callable[[], Awaitable[None]] | None = None
    # Asked again and again while it serves; after `silences_max` refusals in a row it hangs, and is started anew.
    pulse: Probe | None = None
    # A file that it touches while it lives; one that an earlier process left is removed before it starts.
    pulse_file: Path | None = None
    # A file of the child that names a process of its own: (role, path), e.g. a worker's engine.
    reports: tuple[tuple[str, Path], ...] = ()
    # Sockets that it makes outside the state directory and leaves there: removed once it has ended.
    leaves: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Identity:
    """A process that can be recognised later: its pid and the kernel's start time (clock ticks since boot)."""

    pid: int
    started: int

    @classmethod
    def of(cls, *, pid: int) -> Identity | None:
        """The identity of a running process, or None when there is none (a zombie counts as none)."""
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        # The command in brackets may hold anything; fields are counted after the last bracket (proc(5)).
        fields = text.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else cls(pid=pid, started=int(fields[19]))

    def is_running(self) -> bool:
        """True while exactly this process runs."""
        return Identity.of(pid=self.pid) == self

    def signal_group(self, signum: signal.Signals) -> None:
        """Signals its whole process group. A group that is gone is not an error."""
        try:
            os.killpg(self.pid, signum)
        except ProcessLookupError:
            return


def die_with_parent(*, signum: int, parent: int) -> Callable[[], None]:
    """A function to run in the child before exec: ask the kernel for `signum` when `parent` dies."""

    def ask() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0)
        if os.getppid() != parent:  # it died before the kernel was asked
            os._exit(1)

    return ask


def spawn(*, spec: ChildSpec, log: Path) -> subprocess.Popen[bytes]:
    """Starts the child in its own session, its output appended to `log`. Raises OSError when it cannot run.

    Must be called from the main thread: the kernel ties PR_SET_PDEATHSIG to the thread that forks.
    """
    with log.open("ab") as output:
        return subprocess.Popen(  # noqa: S603 - the commands are ours
            spec.command,
            cwd=spec.cwd,
            env=dict(spec.env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=0o077,  # logs, spools and sockets of the platform hold what tenants wrote
            user=spec.run_as,
            group=group_of(user=spec.run_as),
            extra_groups=None if spec.run_as is None else [],
            preexec_fn=die_with_parent(signum=spec.stop_signal, parent=os.getpid()),
        )


def group_of(*, user: str | None) -> int | None:
    """The primary group of a user, or None for ourselves. Raises KeyError for an unknown user."""
    if user is None:
        return None
    import pwd

    return pwd.getpwnam(user).pw_gid


def is_group_alive(*, pgid: int) -> bool:
    """True while any process of the group runs; a zombie that nobody reaped does not count."""
    try:
        os.killpg(pgid, 0)
    except ProcessLookupError:
        return False
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == pgid and fields[0] not in "ZX":
            return True
    return False


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process and its group take: seconds since its start, bytes of memory that are resident."""

    age: float
    memory_bytes: int


def find_usage(*, pid: int) -> Usage | None:
    """The usage of a process and of those in its group, or None when it is gone."""
    leader = Identity.of(pid=pid)
    if leader is None:
        return None
    pages = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if entry.name == str(pid) or int(fields[2]) == pid:
            pages += int(fields[21])
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    age = uptime - leader.started / os.sysconf("SC_CLK_TCK")
    return Usage(age=age, memory_bytes=pages * os.sysconf("SC_PAGE_SIZE"))


def listens(*, pid: int, port: int) -> bool:
    """True when the process or one of its group is who listens on 127.0.0.1:port (proc_pid_net(5))."""
    wanted = f":{port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {f"socket:[{row[9]}]" for row in rows if row[1].endswith(wanted) and row[3] == "0A"}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if entry.name != str(pid) and os.getpgid(int(entry.name)) != pid:
                continue
            if any(str(link.readlink()) in inodes for link in (entry / "fd").iterdir()):
                return True
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return False


def ends_within(pidfd: int, *, seconds: float) -> bool:
    """Waits until a process has ended, or the time is over. By poll: select() refuses numbers past 1,023."""
    waiter = select.poll()
    waiter.register(pidfd, select.POLLIN)
    return bool(waiter.poll(seconds * 1_000))


def stop_group(*, identity: Identity, signum: signal.Signals, deadline: float) -> bool:
    """Stops a group that may not be our child: signal, wait up to `deadline` seconds, then kill.

    Returns True when it stopped by itself. Only the group of exactly this process is touched.
    """
    if not identity.is_running():
        return True
    pidfd = os.pidfd_open(identity.pid)
    try:
        identity.signal_group(signum)
        ended = ends_within(pidfd, seconds=deadline)
        if is_group_alive(pgid=identity.pid):
            identity.signal_group(signal.SIGKILL)
            ends_within(pidfd, seconds=5.0)
        return ended
    finally:
        os.close(pidfd)


@dataclass(frozen=True, slots=True)
class PidRecord:
    """What a pid file says: who it is, and how it is stopped."""

    identity: Identity
    signum: signal.Signals
    deadline: float
    leaves: tuple[Path, ...] = ()


def write_pid(*, path: Path, identity: Identity, spec: ChildSpec) -> None:
    """Leaves the child's identity for a later supervisor."""
    record = {"pid": identity.pid, "started": identity.started}
    how = {"signal": int(spec.stop_signal), "deadline": spec.stop_deadline, "leaves": [*map(str, spec.leaves)]}
    write_private(path, json.dumps({**record, **how}))


def read_pid(*, path: Path) -> PidRecord | None:
    """What the pid file says, or None when it is gone or not one of ours."""
    try:
        found = json.loads(path.read_text())
        identity = Identity(pid=int(found["pid"]), started=int(found["started"]))
        how = signal.Signals(int(found["signal"])), float(found["deadline"])
        return PidRecord(identity, *how, leaves=tuple(Path(path) for path in found.get("leaves", ())))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def remove_sockets(paths: Iterable[Path]) -> None:
    """Removes sockets that a server of ours left behind. One that is another user's, or still answers, stays."""
    for path in paths:
        try:
            found = path.lstat()
            if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
                continue
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(1.0)
                probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError:  # it is gone, or somebody's who is busy
            continue


class LocalServer:
    """One child run by hand, without a supervisor: started, awaited, stopped. For the test fixtures."""

    def __init__(self, *, spec: ChildSpec, log: Path) -> None:
        self.spec = spec
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the child and waits until it serves. Raises NotReady with the end of its log."""
        import asyncio

        asyncio.run(self.start_here())

    async def start_here(self) -> None:
        """As `start`, on the loop that runs, which must be the main thread's."""
        process = self._process = spawn(spec=self.spec, log=self.log)
        reason = await wait_ready(spec=self.spec, pid=process.pid, has_ended=lambda: process.poll() is not None)
        if reason is not None:
            self.stop()
            tail = self.log.read_text(errors="replace")[-2000:]
            message = f"{self.spec.name} does not serve: {reason}\n{tail}"
            raise NotReady(message)
        if self.spec.prepare is not None:
            await self.spec.prepare()

    def stop(self) -> None:
        """Stops the child and all of its group, by force after its deadline."""
        process = self._process
        if process is None:
            return
        identity = Identity.of(pid=process.pid)
        if identity is not None:
            stop_group(identity=identity, signum=self.spec.stop_signal, deadline=self.spec.stop_deadline)
        process.wait(timeout=5)
        remove_sockets(self.spec.leaves)
        self._process = None


async def wait_ready(*, spec: ChildSpec, pid: int, has_ended: Callable[[], bool]) -> str | None:
    """Probes until the child serves. Returns None then, else why it does not: it ended, or its time is over.

    An answer counts only from the child itself: another program may have taken its port a moment before.
    """
    import asyncio

    reason = "it did not answer"
    loop = asyncio.get_running_loop()
    until = loop.time() + spec.ready_deadline
    while loop.time() < until:
        if has_ended():
            return "it ended at once"
        try:
            async with asyncio.timeout(5):
                await spec.probe()
            if spec.port is not None and not listens(pid=pid, port=spec.port):
                raise NotReady(f"another program listens on its port {spec.port}")
        except NotReady as error:
            reason = str(error)
        except (OSError, EOFError, TimeoutError) as error:
            reason = f"no answer ({type(error).__name__})"
        else:
            return None
        await asyncio.sleep(_POLL_SECONDS)
    return f"{reason} within {spec.ready_deadline:.0f} s"
