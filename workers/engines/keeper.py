"""Stands between the worker and the engine, so that no engine process outlives its worker, however that one ended.

Run by `child` as `python keeper.py ENGINE...`: stdin is a pipe that the worker holds open, stdout takes one line with
the engine's pid, stderr is the engine's log. The engine leads a process group of its own; when the worker goes (end of
stdin), or SIGTERM comes, the group gets SIGTERM and after `WEIR_KEEPER_SECONDS` SIGKILL; when the engine's first
process ends, what it left of the group is killed. The engine has a temporary directory of its own (vLLM leaves its
sockets there when it is killed), removed with it. Standard library only: it starts in a few milliseconds.
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# A Unix socket's path holds 107 bytes, and vLLM's names take 37: a longer directory for temporary files is not used.
SCRATCH_BASE_MAX = 45
SCRATCH = "weir-engine-"


def main() -> int:
    base = tempfile.gettempdir()
    base = base if len(base) <= SCRATCH_BASE_MAX else "/tmp"  # noqa: S108
    sweep(base)
    scratch = tempfile.mkdtemp(prefix=f"{SCRATCH}{os.getpid()}-", dir=base)
    try:
        return keep(scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def sweep(base: str) -> None:
    """Removes what keepers left that were killed before they could: theirs is the pid in the name."""
    for entry in os.scandir(base):
        pid = entry.name.removeprefix(SCRATCH).partition("-")[0]
        if entry.name.startswith(SCRATCH) and pid.isdigit() and not os.path.exists(f"/proc/{pid}"):  # noqa: PTH110
            shutil.rmtree(entry.path, ignore_errors=True)  # another user's stays


def keep(scratch: str) -> int:
    """Runs the engine of the command line until it ends or must. Returns its exit code."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    log = sys.stderr.fileno()
    me = os.getpid()
    engine = subprocess.Popen(  # noqa: S603 - the command is the worker's own
        sys.argv[1:],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env={**os.environ, "TMPDIR": scratch},
        start_new_session=True,
        preexec_fn=lambda: _die_with(me),
    )
    sys.stdout.write(f"{engine.pid}\n")
    sys.stdout.flush()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ended = os.pidfd_open(engine.pid)
    while not stop.is_set() and engine.poll() is None:
        readable, _, _ = select.select([sys.stdin, ended], [], [], 0.5)
        if sys.stdin in readable and not os.read(0, 64):
            stop.set()
    if engine.poll() is None:
        os.killpg(engine.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            engine.wait(timeout=float(os.environ.get("WEIR_KEEPER_SECONDS", "8")))
    with contextlib.suppress(ProcessLookupError):
        os.killpg(engine.pid, signal.SIGKILL)
    code = engine.wait()
    return code if code >= 0 else 128 - code


def _die_with(parent: int) -> None:
    """In the child before exec: SIGKILL when the keeper dies, also when it died just now."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    sys.exit(main())
