"""Local mode: `make up` from first line to last. Called by `manage.py up`; imports no Django.

Invariant: whatever is wrong with the machine is said in one sentence that names what to do, before anything
is started; whatever was started is stopped again, in order, however this ends.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from argparse import ArgumentParser
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from controlplane.local import demo, model
from controlplane.local.children import Identity, die_with_parent, ends_within
from controlplane.local.output import open_console, tolerate_output
from controlplane.local.paths import Layout, quote_env, sweep_short_paths, write_private
from controlplane.local.plan import SHARED, Plan, PlanFailed, choose_engine, make_plan, read_settings
from controlplane.local.ports import NoFreePort
from controlplane.local.postgres import ClusterFailed
from controlplane.local.progress import Reporter, say_waiting
from controlplane.local.secrets_file import load_or_make
from controlplane.local.standing import find_ignored
from controlplane.local.supervisor import (
    AlreadyRunning,
    ChildFailed,
    Supervisor,
    hold_lock,
    is_locked,
    stop_leftovers,
)

_DETACHED_DEADLINE_SECONDS = 1_800.0
_DOWN_DEADLINE_SECONDS = 120.0
_REASONS = {
    errno.ENOSPC: "the disk is full: free some space and run it again",
    errno.EDQUOT: "your disk quota is used up: free some space and run it again",
    errno.EFBIG: "your disk quota is used up: free some space and run it again",
    errno.EROFS: "it is on a read-only file system: clone to a place you can write, or set WEIR_HOME to one",
    errno.EACCES: "it cannot be written: make it yours, or set WEIR_HOME to a folder that is",
    errno.ENAMETOOLONG: "its path is too long: set WEIR_HOME to a shorter one",
    errno.ENOTDIR: "it is not a folder: set WEIR_HOME to one",
}
# What the empty stores take at the first start, and room to write.
_DISK_BYTES_MIN = 200 * 1024 * 1024


class SetupFailed(Exception):
    """The engine's environment could not be made; it has said why."""


def add_arguments(parser: ArgumentParser) -> None:
    """The options of `up`, for `manage.py up` and `python -m controlplane.local up` alike."""
    parser.add_argument("--detach", action="store_true", help="return when it serves")
    parser.add_argument("--no-demo", action="store_true", help="do not send the demo request")
    parser.add_argument("--until-pid", type=int, metavar="PID", help="stop when this process has ended, however it did")


def run_up(*, detach: bool, with_demo: bool, until_pid: int | None) -> int:
    """`up` in this clone. Returns the exit code."""
    # Whoever configured logging before us: the terminal belongs to the progress lines.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    # Modes are stated where they matter; a mask that takes more would lock PostgreSQL's user out of its programs.
    os.umask(0o022)
    tolerate_output()
    layout, console = Layout.of_clone(), open_console()
    if detach:
        return run_detached(layout=layout, console=console, with_demo=with_demo, until_pid=until_pid)
    return run_foreground(layout=layout, console=console, with_demo=with_demo, until_pid=until_pid)


def run_foreground(*, layout: Layout, console: Console, with_demo: bool, until_pid: int | None) -> int:
    """Starts everything, stays until it is asked to stop. Returns the exit code."""
    began = time.monotonic()
    try:
        layout.make()
        lock = hold_lock(layout=layout)
    except AlreadyRunning:
        return report_running(layout=layout, console=console)
    except OSError as error:
        return _fail(console, _explain(error))
    try:
        _write_holder(layout)
        sweep_short_paths()
        for name in stop_leftovers(layout=layout):
            console.print(f"  [yellow]stopped {name}, left over from a run that was killed[/]")
        plan = _prepare(layout=layout, console=console)
        greet = partial(_greet, layout=layout, console=console, with_demo=with_demo, began=began)
        return _supervise(layout=layout, console=console, plan=plan, greet=greet, until_pid=until_pid)
    except (PlanFailed, ClusterFailed, NoFreePort, model.ModelFailed, ChildFailed, ValueError) as error:
        return _fail(console, str(error))
    except OSError as error:
        return _fail(console, _explain(error))
    except SetupFailed:
        return 1
    except KeyboardInterrupt:
        console.print("Stopped.")
        return 130
    finally:
        layout.supervisor_file.unlink(missing_ok=True)
        layout.remove_short_path()
        os.close(lock)


def run_detached(*, layout: Layout, console: Console, with_demo: bool, until_pid: int | None) -> int:
    """Starts the supervisor in a session of its own and returns when it serves."""
    try:
        if is_locked(layout=layout):
            return report_running(layout=layout, console=console)
        layout.make()
        check_disk(layout=layout)
        process = _spawn_supervisor(layout, until_pid)
    except PlanFailed as failure:
        return _fail(console, str(failure))
    except OSError as error:
        return _fail(console, _explain(error))
    try:
        if not _follow_until_serving(layout, console, process):
            if process.returncode is not None and process.returncode < 0:
                how = signal.Signals(-process.returncode).name
                return _fail(console, f"its supervisor was ended by {how}: run `make up` again")
            return process.returncode or 1
    except KeyboardInterrupt:
        process.terminate()
        process.wait(timeout=_DOWN_DEADLINE_SECONDS)
        console.print("Stopped.")
        return 130
    try:
        if with_demo:
            _show_demo(layout, console, threading.Event())
    except KeyboardInterrupt:
        console.print()  # the request is given up, the platform goes on
    console.print("It runs in the background: `make ps`, `make logs`, `make down`.")
    return 0


def _spawn_supervisor(layout: Layout, until_pid: int | None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "controlplane.local", "up", "--no-demo"]
    command += [] if until_pid is None else ["--until-pid", str(until_pid)]
    with layout.supervisor_log.open("wb") as output:
        return subprocess.Popen(  # noqa: S603 - ourselves
            command,
            cwd=layout.root,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(layout.root / "platform"), str(layout.root)]),
                "PYTHONIOENCODING": "utf-8",  # it writes a file that we read
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def report_running(*, layout: Layout, console: Console) -> int:
    """Says that one runs already, and how to reach it; or that it is not the one that was asked for."""
    holder = read_holder(layout=layout)
    who = "" if holder is None else f" (process {holder.pid})"
    try:
        ignored = find_ignored(layout=layout, settings=read_settings(layout=layout))
    except PlanFailed as failure:
        return _fail(console, str(failure))
    if ignored:
        return _fail(console, f"Weir runs here already{who}, and {ignored}: `make down` first, then `make up` again")
    console.print(f"Weir runs here already{who}; `make ps` lists its processes, `make down` stops it.")
    if _is_serving(layout) and layout.demo_file.exists():
        demo.print_panel(console=console, demo=json.loads(layout.demo_file.read_text()), measured=None)
    return 0


def read_holder(*, layout: Layout) -> Identity | None:
    """The supervisor that holds the state directory, when it has written itself down and runs."""
    try:
        found = json.loads(layout.supervisor_file.read_text())
        identity = Identity(pid=int(found["pid"]), started=int(found["started"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return identity if identity.is_running() else None


def take_down(*, layout: Layout, console: Console) -> int:
    """Stops the platform of this state directory, and what an earlier one left. Returns the exit code."""
    holder = read_holder(layout=layout)
    if holder is not None and is_locked(layout=layout):
        with console.status("stopping"):
            stopped = _stop_holder(holder)
        if not stopped:
            console.print(f"the supervisor (process {holder.pid}) did not stop in time and was killed")
    if not layout.run.exists():
        console.print("Nothing runs here.")
        return 0
    try:
        lock = hold_lock(layout=layout)
    except AlreadyRunning:
        return _fail(console, "the platform is just being started; try again in a moment")
    left = stop_leftovers(layout=layout)
    os.close(lock)
    console.print("Stopped." if holder is not None or left else "Nothing runs here.")
    return 0


def _stop_holder(holder: Identity) -> bool:
    try:
        pidfd = os.pidfd_open(holder.pid)
    except ProcessLookupError:
        return True
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        if ends_within(pidfd, seconds=_DOWN_DEADLINE_SECONDS):
            return True
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        ends_within(pidfd, seconds=10.0)
        return False
    finally:
        os.close(pidfd)


def _prepare(*, layout: Layout, console: Console) -> Plan:
    """Everything that takes time before the first process: the engine's environment, the model, the cluster."""
    check_disk(layout=layout)
    settings = read_settings(layout=layout)
    engine = choose_engine(settings=settings)
    python: Path | None = None
    if engine == "vllm":
        python = _make_engine(layout=layout, console=console)
    secrets = load_or_make(layout=layout)
    plan = make_plan(layout=layout, settings=settings, secrets=secrets, engine=engine, engine_python=python)
    names = [name for name in plan.env if name in SHARED or name.startswith("WEIR_")]
    write_private(layout.env_file, "".join(f"{name}={quote_env(plan.env[name])}\n" for name in sorted(names)))
    for note in plan.notes:
        console.print(f"  [yellow]{escape(note)}[/]")
    return plan


def check_disk(*, layout: Layout, bytes_min: int = _DISK_BYTES_MIN) -> None:
    """Raises PlanFailed where too little space is free for the stores to start and write."""
    free = shutil.disk_usage(layout.state).free
    if free < bytes_min:
        sizes = f"{free / 1e6:.0f} MB are free in {layout.state}, and the stores need {bytes_min / 1e6:.0f} MB"
        raise PlanFailed(f"{sizes}: free some space, or set WEIR_HOME to a folder on another disk")


def prepare_engine() -> int:
    """Makes the engine's environment and the model, once per user: what the tests of real vLLM need. The exit code."""
    os.umask(0o022)
    console = open_console()
    try:
        _make_engine(layout=Layout.of_clone(), console=console)
    except SetupFailed:
        return 1  # the bootstrap has said why
    except model.ModelFailed as error:
        return _fail(console, str(error))
    except OSError as error:
        return _fail(console, _explain(error))
    except KeyboardInterrupt:
        return 130
    return 0


def _make_engine(*, layout: Layout, console: Console) -> Path:
    """The engine's interpreter, its environment and model made where they are not yet. Raises SetupFailed."""
    python = _ensure_engine(layout)
    began = time.monotonic()
    if not model.cached_directory(root=layout.root).exists():
        console.print("  … model: converted once, about a minute")
    directory, made = model.ensure_model(root=layout.root, python=python, tell=partial(say_waiting, console))
    if made:
        size = sum(path.stat().st_size for path in directory.iterdir()) / 1e6
        console.print(f"  [green]✓[/] model, {size:.0f} MB, {time.monotonic() - began:.0f} s")
    return python


def _ensure_engine(layout: Layout) -> Path:
    """Runs the bootstrap for the engine's environment; it prints its own progress. Raises SetupFailed."""
    sys.stdout.flush()
    # The interpreter below the virtual environment: a new environment must not hang on this one.
    interpreter = getattr(sys, "_base_executable", sys.executable)
    script = str(layout.root / "infra" / "setup" / "bootstrap.py")
    done = subprocess.run(  # noqa: S603 - our own script
        [interpreter, script, "engine", "--print-python"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        preexec_fn=die_with_parent(signum=signal.SIGKILL, parent=os.getpid()),
    )
    if done.returncode != 0:
        raise SetupFailed
    return Path(done.stdout.strip().splitlines()[-1])


def _supervise(
    *, layout: Layout, console: Console, plan: Plan, greet: Callable[[], Awaitable[None]], until_pid: int | None
) -> int:
    reporter = Reporter(console)

    async def run() -> None:
        supervisor = Supervisor(layout=layout, specs=plan.specs, listener=reporter)
        if until_pid is not None:
            _when_ended(until_pid, supervisor.ask_to_stop)
        try:
            async with asyncio.TaskGroup() as group:
                reminder = group.create_task(reporter.remind())
                await supervisor.run(when_serving=greet)
                reminder.cancel()
        except* ChildFailed as failed:
            raise failed.exceptions[0] from None

    asyncio.run(run())
    console.print("Stopped.")
    return 0


def _when_ended(pid: int, call: Callable[[], None]) -> None:
    """Calls once when the process has ended; at once when there is none. Its descriptor is kept until we end."""
    loop = asyncio.get_running_loop()
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        loop.call_soon(call)
        return

    def ended() -> None:
        loop.remove_reader(pidfd)
        call()

    loop.add_reader(pidfd, ended)


async def _greet(*, layout: Layout, console: Console, with_demo: bool, began: float) -> None:
    """What is said once everything serves."""
    console.print(f"  [green]everything serves[/] after {time.monotonic() - began:.0f} s")
    if not with_demo:
        return
    stopped = threading.Event()
    try:
        await asyncio.to_thread(_show_demo, layout, console, stopped)
    finally:
        stopped.set()  # a thread cannot be cancelled; it looks here
    console.print("\nCtrl-C stops it. In another terminal: `make ps`, `make logs NAME=gateway`.")


def _show_demo(layout: Layout, console: Console, stopped: threading.Event) -> None:
    written: dict[str, Any] = json.loads(layout.demo_file.read_text())
    measured = None
    try:
        if written.get("api_key"):  # else it was lost with an older demo.json, as the panel says
            target = {name: written[name] for name in ("base_url", "api_key", "model")}
            demo.wait_until_ready(**target, stopped=stopped)
            measured = demo.ask(console=console, **target, stopped=stopped)
    except demo.DemoStopped:
        console.print()
        return
    except demo.DemoFailed as failure:
        console.print(f"\n[red]The demo request failed:[/] {escape(str(failure))}")
    demo.print_panel(console=console, demo=written, measured=measured)


def _follow_until_serving(layout: Layout, console: Console, process: subprocess.Popen[bytes]) -> bool:
    """Shows the supervisor's lines until it serves (True) or has ended (False)."""
    until = time.monotonic() + _DETACHED_DEADLINE_SECONDS
    with layout.supervisor_log.open(encoding="utf-8", errors="replace") as said:
        while time.monotonic() < until:
            ended = process.poll() is not None
            serving = _is_serving(layout, supervisor=process.pid)
            for line in said:
                console.print(line.rstrip("\n"), markup=False, highlight=False, soft_wrap=True)
            if ended or serving:
                return not ended
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.1)
    console.print(f"it does not serve after {_DETACHED_DEADLINE_SECONDS:.0f} s; see {layout.supervisor_log}")
    return False


def _is_serving(layout: Layout, *, supervisor: int | None = None) -> bool:
    """Whether run.json says so; of exactly this supervisor, when one is named: a killed one leaves its file."""
    try:
        document = json.loads(layout.run_file.read_text())
        return bool(document["serving"]) and supervisor in (None, document["supervisor"])
    except (FileNotFoundError, ValueError, KeyError):
        return False


def _write_holder(layout: Layout) -> None:
    identity = Identity.of(pid=os.getpid())
    assert identity is not None
    write_private(layout.supervisor_file, json.dumps({"pid": identity.pid, "started": identity.started}))


def _explain(error: OSError) -> str:
    said = str(error.strerror or error)
    reason = _REASONS.get(error.errno or 0, said)
    if error.errno == errno.EEXIST and said == os.strerror(errno.EEXIST):
        reason = _REASONS[errno.ENOTDIR]
    return f"{error.filename}: {reason}" if error.filename else reason


def _fail(console: Console, sentence: str) -> int:
    console.print(f"[red]up:[/] {escape(sentence)}")
    return 1
