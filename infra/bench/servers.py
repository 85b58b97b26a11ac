"""Server processes that live for a bench only, and what a process has cost the processor so far.

Called by the benches that start more than a platform. Invariant: a server is ended with its block, however that comes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from controlplane.local import probes
from controlplane.local.children import ChildSpec, NotReady, Probe, spawn, wait_ready
from controlplane.local.ports import find_free
from infra.bench.instance import ROOT

_TICKS = os.sysconf("SC_CLK_TCK")
_SAID_BYTES = 2_000
BARE = "infra.bench.bare_app:app"


@asynccontextmanager
async def serving(
    command: tuple[str, ...],
    *,
    name: str,
    env: Mapping[str, str],
    probe: Probe,
    port: int | None = None,
    ready_seconds: float = 60.0,
) -> AsyncIterator[int]:
    """The pid of a server once `probe` is content. Raises NotReady with the end of what it said."""
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as folder:
        log = Path(folder, f"{name}.log")
        spec = ChildSpec(
            name=name, role="bench", command=command, env=env, cwd=ROOT, probe=probe, port=port,
            ready_deadline=ready_seconds, stop_deadline=20.0,
        )  # fmt: skip
        process = spawn(spec=spec, log=log)
        try:
            reason = await wait_ready(spec=spec, pid=process.pid, has_ended=lambda: process.poll() is not None)
            if reason is not None:
                raise NotReady(f"{name} does not serve: {reason}\n{_end_of(log)}")
            yield process.pid
        finally:
            await asyncio.to_thread(_stop, process, spec)


def _stop(process: subprocess.Popen[bytes], spec: ChildSpec) -> None:
    """SIGTERM to its group, SIGKILL past its deadline. It is our child: its pid is its own until it is waited for."""
    for signum, seconds in ((spec.stop_signal, spec.stop_deadline), (signal.SIGKILL, 5.0)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signum)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)


@asynccontextmanager
async def bare_server(*, model: str, events: Path | None = None) -> AsyncIterator[tuple[int, int]]:
    """`bare_app` under uvicorn, as a gateway runs under it: its port and its pid. Raises NotReady."""
    port = find_free(taken=[])
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "platform"), str(ROOT)]),
        "WEIR_BENCH_MODEL": model,
        "WEIR_BENCH_EVENTS": str(events or ""),
    }
    command = (
        *(sys.executable, "-m", "uvicorn", BARE, "--host", "127.0.0.1", "--port", str(port), "--loop", "uvloop"),
        *("--http", "httptools", "--no-access-log", "--log-level", "warning", "--timeout-keep-alive", "75"),
    )
    probe = probes.http(port=port, path="/v1/models")
    async with serving(command, name="bare", env=env, probe=probe, port=port) as pid:
        yield port, pid


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-_SAID_BYTES:]


def children_of(pid: int) -> list[int]:
    """The direct children of a process, by pid. Empty once it has ended."""
    try:
        threads = sorted(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    except OSError:
        return []


def cpu_of(pids: Mapping[str, int]) -> dict[str, float]:
    """Seconds of the processor by name; who has ended is left out."""
    found = {}
    for name, pid in pids.items():
        with suppress(OSError):
            found[name] = cpu_seconds(pid)
    return found


def cpu_seconds(pid: int) -> float:
    """What a process has had of the processor, in user and system mode (proc(5)); without its children.

    Raises OSError when it has ended.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
