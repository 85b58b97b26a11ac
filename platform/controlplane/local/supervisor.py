"""Local mode: the process that owns every other one. Called by `manage.py up`; imports no Django.

Invariants:
- it starts a child only after those it needs serve, and stops what it started, and nothing else;
- a child that dies is started again with back-off, or given up with a reason (`restarts.decide`);
- `.weir/run.json` names what runs, written whole or not at all, again after every change;
- one supervisor per state directory: it holds a lock that the kernel releases when it dies, however it dies.

Everything runs on one thread: the kernel ties "die with your parent" to the thread that forked.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from controlplane.local import logs
from controlplane.local.children import (
    ChildSpec,
    Identity,
    NotReady,
    is_group_alive,
    read_pid,
    remove_sockets,
    spawn,
    stop_group,
    wait_ready,
    write_pid,
)
from controlplane.local.paths import Layout, write_private
from controlplane.local.restarts import Again, GiveUp, RestartPolicy, decide

_HOUSEKEEPING_SECONDS = 1.0
_KILL_SECONDS = 5.0
# Below this the stores fail to write, whatever they say in their logs.
_DISK_FULL_BYTES = 16 * 1024 * 1024
# A closed terminal too: without it the children would be stopped by the kernel, all at once.
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class AlreadyRunning(Exception):
    """Another supervisor holds this state directory."""


class State(StrEnum):
    """Where a child is in its life."""

    WAITING = "waiting"
    STARTING = "starting"
    SERVING = "serving"
    DONE = "done"
    BACKING_OFF = "backing off"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(slots=True)
class Child:
    """One child as the supervisor sees it."""

    spec: ChildSpec
    state: State = State.WAITING
    process: subprocess.Popen[bytes] | None = None
    identity: Identity | None = None
    deaths: int = 0  # in a row
    restarts: int = 0
    restarted_at: float | None = None  # by the monotonic clock, which the processes of a machine share
    serving_since: float | None = None  # by the loop's clock
    reason: str = ""
    up: asyncio.Event = field(default_factory=asyncio.Event)


class ChildFailed(Exception):
    """A child was given up while the platform started; the text says why."""


Listener = Callable[[Child], None]


class Supervisor:
    """Starts, watches and stops the children of one state directory."""

    def __init__(
        self,
        *,
        layout: Layout,
        specs: Iterable[ChildSpec],
        listener: Listener,
        policy: RestartPolicy | None = None,
    ) -> None:
        self.layout = layout
        self.children = {spec.name: Child(spec=spec) for spec in specs}
        self._listener = listener
        self._policy = policy or RestartPolicy()
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._started = False
        self._written = ""

    async def run(self, *, when_serving: Callable[[], Awaitable[None]]) -> None:
        """Runs until it is asked to stop. Raises ChildFailed when the platform cannot be started.

        `when_serving` is called once everything serves; its end does not end the platform.
        """
        loop = asyncio.get_running_loop()
        for signum in _STOP_SIGNALS:
            loop.add_signal_handler(signum, self.ask_to_stop)
        try:
            async with asyncio.TaskGroup() as group:
                keepers = [group.create_task(self._keep(child)) for child in self.children.values()]
                housekeeper = group.create_task(self._keep_house())
                greeter = group.create_task(self._greet(when_serving))
                await self._stopping.wait()
                for task in (*keepers, housekeeper, greeter):
                    task.cancel()
        except* ChildFailed as failed:
            raise ChildFailed(str(failed.exceptions[0])) from None
        finally:
            await self._stop_all()
            for signum in _STOP_SIGNALS:
                loop.remove_signal_handler(signum)

    def ask_to_stop(self) -> None:
        """Begins an orderly stop; asked a second time, it no longer waits for anything."""
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()

    async def _greet(self, when_serving: Callable[[], Awaitable[None]]) -> None:
        for child in self.children.values():
            await child.up.wait()
        self._started = True
        self._write_run_file()
        await when_serving()

    async def _keep(self, child: Child) -> None:
        """Keeps one child alive: its whole life in one place."""
        for name in child.spec.after:
            await self.children[name].up.wait()
        while True:
            served = await self._live_once(child)
            if child.state is State.DONE:
                return
            child.serving_since = None
            verdict = decide(policy=self._policy, deaths_before=child.deaths, served_seconds=served)
            child.deaths = verdict.deaths
            if isinstance(verdict, GiveUp) or child.spec.once:
                self._give_up(child)
                return
            await self._back_off(child, verdict)

    async def _live_once(self, child: Child) -> float:
        """Starts the child and waits until it ends. Returns for how many seconds it served."""
        self._to(child, State.STARTING)
        loop = asyncio.get_running_loop()
        log = self._log_of(child)
        logs.rotate(path=log)
        try:
            if child.spec.pulse_file is not None:
                child.spec.pulse_file.unlink(missing_ok=True)
            process = child.process = spawn(spec=child.spec, log=log)
            child.identity = Identity.of(pid=process.pid)
            if child.identity is not None:
                write_pid(path=self._pid_file(child), identity=child.identity, spec=child.spec)
        except OSError as error:
            child.reason = f"it cannot be started: {error}"
            await self._stop(child)  # when it runs, but nobody could find it again
            return 0.0
        self._write_run_file()
        ended = _watch_end(process)
        if child.spec.once:
            await ended
            child.reason = _how_it_ended(process.wait())
            await self._clear_group(child)
            if process.returncode == 0:
                self._serve(child, State.DONE)
            return 0.0
        refusal = await self._wait_until_serving(child, ended)
        if refusal is None:
            began = loop.time()
            hung = await self._serve_until_ended(child, ended)
            if hung is not None:  # it would not hear its stop signal either
                await self._clear_group(child)
                child.reason = hung
                return loop.time() - began
            child.reason = _how_it_ended(process.wait())
            await self._clear_group(child)
            return loop.time() - began
        child.reason = refusal if process.poll() is None else f"{refusal}; {_how_it_ended(process.wait())}"
        await self._stop(child)
        return 0.0

    async def _serve_until_ended(self, child: Child, ended: asyncio.Future[None]) -> str | None:
        """Waits until the child has ended (None), or hangs (the reason): a process that is stopped never ends."""
        silences = 0
        while not ended.done():
            await asyncio.wait([ended], timeout=self._policy.pulse_seconds)
            if ended.done() or child.spec.pulse is None:
                continue
            try:
                async with asyncio.timeout(self._policy.pulse_seconds):
                    await child.spec.pulse()
                silences = 0
            except (NotReady, OSError, EOFError, TimeoutError) as error:
                silences += 1
                if silences >= self._policy.silences_max:
                    return f"it hung ({str(error) or type(error).__name__})"
        return None

    async def _wait_until_serving(self, child: Child, ended: asyncio.Future[None]) -> str | None:
        assert child.process is not None
        refusal = await wait_ready(spec=child.spec, pid=child.process.pid, has_ended=ended.done)
        if refusal is None and child.spec.prepare is not None:
            try:
                await child.spec.prepare()
            except Exception as error:  # noqa: BLE001 - any failure of the store's first use is its refusal
                refusal = f"it answers, but cannot be used: {error}"
        if refusal is None:
            self._serve(child, State.SERVING)
        return refusal

    def _serve(self, child: Child, state: State) -> None:
        child.reason = ""
        child.serving_since = asyncio.get_running_loop().time()
        self._to(child, state)
        child.up.set()
        self._write_run_file()

    async def _back_off(self, child: Child, verdict: Again) -> None:
        child.restarts += 1
        child.restarted_at = time.monotonic()
        self._to(child, State.BACKING_OFF)
        self._write_run_file()
        await asyncio.sleep(verdict.wait)

    def _give_up(self, child: Child) -> None:
        """Before the platform serves this ends it; later the rest goes on, and `make ps` says what is missing."""
        last = "\n".join(logs.tail(path=self._log_of(child), lines=12))
        free = shutil.disk_usage(self.layout.state).free
        if free < _DISK_FULL_BYTES:
            child.reason += f"; the disk of {self.layout.state} is full ({free / 1e6:.0f} MB free): free some space"
        self._to(child, State.FAILED)
        self._write_run_file()
        if not self._started:
            raise ChildFailed(
                f"{child.spec.name} could not be started: {child.reason}. The end of {self._log_of(child)}:\n{last}"
            )

    async def _keep_house(self) -> None:
        """Every second: short logs, and in run.json the processes that children report as their own."""
        while True:
            await asyncio.sleep(_HOUSEKEEPING_SECONDS)
            with suppress(OSError):  # a full disk: what serves goes on, and in a second it is tried again
                for child in self.children.values():
                    logs.rotate(path=self._log_of(child))
            self._forgive()
            self._write_run_file()

    def _forgive(self) -> None:
        """What has served for a while no longer dies in a row: so `decide` has it too."""
        now = asyncio.get_running_loop().time()
        for child in self.children.values():
            if child.serving_since is not None and now - child.serving_since >= self._policy.stable_seconds:
                child.deaths = 0

    async def _stop_all(self) -> None:
        """Stops wave after wave, the highest first."""
        async with asyncio.TaskGroup() as rush:
            hurry = rush.create_task(self._kill_when_hurried())
            for wave in sorted({child.spec.wave for child in self.children.values()}, reverse=True):
                async with asyncio.TaskGroup() as group:
                    for child in self.children.values():
                        if child.spec.wave == wave:
                            group.create_task(self._stop(child))
            hurry.cancel()
        self.layout.run_file.unlink(missing_ok=True)

    async def _kill_when_hurried(self) -> None:
        await self._hurry.wait()
        for child in self.children.values():
            if child.identity is not None and child.identity.is_running():
                child.identity.signal_group(signal.SIGKILL)

    async def _stop(self, child: Child) -> None:
        """Signals the child, waits up to its deadline, kills what is left of its group."""
        process = child.process
        if process is None:
            return
        if process.poll() is None:
            os.killpg(process.pid, child.spec.stop_signal)
            with suppress(TimeoutError):
                async with asyncio.timeout(child.spec.stop_deadline):
                    await _watch_end(process)
        await self._clear_group(child)
        if child.state is not State.FAILED:
            self._to(child, State.STOPPED)

    async def _clear_group(self, child: Child) -> None:
        """Ends what a child left behind in its group, and its traces."""
        process = child.process
        if process is None:
            return
        if is_group_alive(pgid=process.pid):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            async with asyncio.timeout(_KILL_SECONDS):
                await _watch_end(process)
        process.wait(timeout=_KILL_SECONDS)
        child.process = child.identity = None
        self._pid_file(child).unlink(missing_ok=True)
        for _, path in child.spec.reports:
            path.unlink(missing_ok=True)
        remove_sockets(child.spec.leaves)

    def _to(self, child: Child, state: State) -> None:
        child.state = state
        self._listener(child)

    def _log_of(self, child: Child) -> Path:
        return self.layout.logs / f"{child.spec.name}.log"

    def _pid_file(self, child: Child) -> Path:
        return self.layout.run / f"{child.spec.name}.pid.json"

    def _write_run_file(self) -> None:
        rows: list[dict[str, object]] = []
        for child in self.children.values():
            if child.spec.once:
                continue
            pid = None if child.identity is None else child.identity.pid
            row = {"name": child.spec.name, "role": child.spec.role, "pid": pid, "port": child.spec.port}
            life = {"state": str(child.state), "deaths": child.deaths, "restarts": child.restarts}
            rows.append({**row, **life, "restarted_at": child.restarted_at, "reason": child.reason})
            if pid is not None:
                rows += [
                    {"name": f"{child.spec.name}.{role}", "role": role, "port": None, **read_report(path=path)}
                    for role, path in child.spec.reports
                ]
        running = [row for row in rows if row["pid"] is not None]
        missing = [row for row in rows if row["pid"] is None]
        document = {"supervisor": os.getpid(), "serving": self._started, "processes": running, "missing": missing}
        text = json.dumps(document, indent=2) + "\n"
        if text != self._written:
            with suppress(OSError):  # as above: the platform does not end because a file about it cannot be written
                write_private(self.layout.run_file, text)
                self._written = text


def read_report(*, path: Path) -> dict[str, object]:
    """What a child says of a process of its own: `pid` (None: it does not run now), `state`, `restarts`."""
    try:
        said = json.loads(path.read_text())
        pid, state, restarts = int(said["pid"]), str(said["state"]), int(said["restarts"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return {"pid": None, "state": "down"}
    if Identity.of(pid=pid) is None:
        return {"pid": None, "state": "down", "restarts": restarts}
    return {"pid": pid, "state": state, "restarts": restarts}


def _watch_end(process: subprocess.Popen[bytes]) -> asyncio.Future[None]:
    """A future that is done when the child has ended. The child stays a zombie until somebody waits for it."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    if process.poll() is not None:
        ended.set_result(None)
        return ended
    pidfd = os.pidfd_open(process.pid)

    def done() -> None:
        if not ended.done():
            ended.set_result(None)

    def forget(_: asyncio.Future[None]) -> None:
        loop.remove_reader(pidfd)
        os.close(pidfd)

    loop.add_reader(pidfd, done)
    ended.add_done_callback(forget)
    return ended


def _how_it_ended(code: int) -> str:
    if code < 0:
        return f"it was ended by {signal.Signals(-code).name}"
    return f"it ended with code {code}"


def hold_lock(*, layout: Layout) -> int:
    """Takes the state directory for this process; returns the file descriptor to keep. Raises AlreadyRunning."""
    descriptor = os.open(layout.run / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise AlreadyRunning from None
    return descriptor


def is_locked(*, layout: Layout) -> bool:
    """True while a supervisor runs on this state directory."""
    if not layout.run.exists():
        return False
    try:
        os.close(hold_lock(layout=layout))
    except AlreadyRunning:
        return True
    return False


def stop_leftovers(*, layout: Layout) -> list[str]:
    """Stops children that outlived a killed supervisor; returns their names. Call it with the lock held."""
    stopped: list[str] = []
    for path in sorted(layout.run.glob("*.pid.json")):
        found = read_pid(path=path)
        if found is not None and found.identity.is_running():
            stop_group(identity=found.identity, signum=found.signum, deadline=found.deadline)
            stopped.append(path.name.removesuffix(".pid.json"))
        if found is not None:
            remove_sockets(found.leaves)
        path.unlink(missing_ok=True)
    layout.run_file.unlink(missing_ok=True)
    return stopped
