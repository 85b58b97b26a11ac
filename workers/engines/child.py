"""Keeps one engine child running: start, readiness, progress watchdog, kill and restart with back-off.

Called by `loop`. Invariants: at most one engine of this host lives at a time; `ready` is True only between a good
`/health` and the engine's end; a silent engine with work in it is killed, a busy one is not.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import orjson
import structlog

from contracts.clock import Clock
from workers.engines.base import EngineAdapter, EngineError, EngineGone, Health
from workers.engines.settings import EngineSettings
from workers.engines.vllm import ChildCommand

READY_POLL_SECONDS = 0.1
WATCH_SECONDS = 1.0
SPAWN_SECONDS = 30.0
DEATH_GRACE_SECONDS = 3.0
BACKOFF_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
LOG_BYTES_MAX = 32 * 1024 * 1024

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildPaths:
    socket: Path
    pid_file: Path
    log: Path


class EngineChild:
    """`base.EngineHost` over a child process. `working()` says whether the worker has requests in the engine."""

    def __init__(
        self,
        *,
        adapter: EngineAdapter,
        command: ChildCommand,
        paths: ChildPaths,
        settings: EngineSettings,
        clock: Clock,
        working: Callable[[], bool],
        on_change: Callable[[], None],
    ) -> None:
        self.adapter = adapter
        self._command = command
        self._paths = paths
        self._settings = settings
        self._clock = clock
        self._working = working
        self._on_change = on_change
        self._incarnation = 0
        self._pid = 0
        self._ready = asyncio.Event()
        self._dead = asyncio.Event()
        self._dead.set()
        self._progress: tuple[float, ...] = ()
        self._progress_at = 0.0

    @property
    def incarnation(self) -> int:
        return self._incarnation

    @property
    def ready(self) -> bool:
        return self._ready.is_set()

    async def wait_ready(self) -> None:
        await self._ready.wait()

    def note_progress(self) -> None:
        """A token came out: better evidence of life than any probe."""
        self._progress_at = self._clock.monotonic()

    def progressing(self) -> bool:
        return self.ready and self._clock.monotonic() - self._progress_at < self._settings.stall_seconds

    async def has_died(self, *, incarnation: int) -> bool:
        """A broken connection often comes a moment before the process is seen to end.

        A server that says that its engine is dead is ended here: by itself it would go in seconds, or never.
        """
        if incarnation != self._incarnation:
            return True
        if await self.adapter.health() is Health.DEAD and incarnation == self._incarnation:
            log.error("engine_dead_inside", pid=self._pid)
            self._kill()
            await self._dead.wait()
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DEATH_GRACE_SECONDS):
                await self._dead.wait()
        return incarnation != self._incarnation or self._dead.is_set()

    async def run(self) -> None:
        """Keep the engine up until cancelled. Raises EngineError after too many starts that never became ready."""
        failures = 0
        while True:
            became_ready = await self._one_life()
            failures = 0 if became_ready else failures + 1
            if failures >= self._settings.restarts_max:
                raise EngineError(f"the engine did not start in {failures} attempts; see {self._paths.log.name}")
            await asyncio.sleep(BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)])

    async def _one_life(self) -> bool:
        """Start the engine and wait for its end. Returns whether it was ever ready."""
        became_ready = False
        keeper = await self._start()
        try:
            if await self._until_ready(keeper):
                became_ready = True
                self._progress_at = self._clock.monotonic()
                self._ready.set()
                self._report(keeper, state="serving")
                self._on_change()
                log.info("engine_ready", pid=self._pid, incarnation=self._incarnation)
                await self._watch(keeper)
        finally:
            self._ready.clear()
            self._on_change()
            await asyncio.shield(self._stop(keeper))
            self._dead.set()
            log.warning("engine_ended", pid=self._pid, code=keeper.returncode, was_ready=became_ready)
        return became_ready

    async def _start(self) -> asyncio.subprocess.Process:
        for path in (self._paths.socket, self._paths.pid_file, self._paths.log):
            path.parent.mkdir(parents=True, exist_ok=True)
        self._paths.socket.unlink(missing_ok=True)
        settings = self._settings
        keeper_file = Path(__file__).with_name("keeper.py")
        output = _open_log(self._paths.log)
        try:
            keeper = await asyncio.create_subprocess_exec(
                sys.executable,
                "-S",
                str(keeper_file),
                *self._command.argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=output,
                env={
                    **os.environ,
                    **self._command.environment,
                    "WEIR_KEEPER_SECONDS": str(settings.stop_seconds),
                    # Unset: an engine that may not keep what Python compiled compiles a minute's worth at every start.
                    "PYTHONDONTWRITEBYTECODE": "",
                },
            )
        finally:
            os.close(output)
        assert keeper.stdout is not None
        line = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SPAWN_SECONDS):
                line = await keeper.stdout.readline()
        if not line.strip().isdigit():
            with contextlib.suppress(ProcessLookupError):
                keeper.kill()
            await keeper.wait()
            raise EngineError(f"the engine's command cannot be run; see {self._paths.log.name}")
        self._pid = int(line)
        self._incarnation += 1
        self._dead.clear()
        self._report(keeper, state="loading")
        return keeper

    def _report(self, keeper: asyncio.subprocess.Process, *, state: str) -> None:
        """For whoever watches from outside, whole or not at all."""
        document = {
            "pid": self._pid,
            "keeper": keeper.pid,
            "state": state,
            "restarts": self._incarnation - 1,
            "socket": str(self._paths.socket),
            "at_ms": self._clock.now_ms(),
        }
        fresh = self._paths.pid_file.with_suffix(".new")
        fresh.write_bytes(orjson.dumps(document))
        fresh.replace(self._paths.pid_file)

    async def _until_ready(self, keeper: asyncio.subprocess.Process) -> bool:
        deadline = self._clock.monotonic() + self._settings.start_seconds
        while keeper.returncode is None and self._clock.monotonic() < deadline:
            if self._paths.socket.exists() and await self.adapter.health() is Health.WELL:
                return True
            await asyncio.sleep(READY_POLL_SECONDS)
        return False

    def _kill(self) -> None:
        """The engine and all that it started, at once; whoever watches it sees its end."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)

    async def _watch(self, keeper: asyncio.subprocess.Process) -> None:
        """Returns when the engine is dead; a silent one is killed at once, so that its requests learn it now."""
        ended = asyncio.ensure_future(keeper.wait())
        try:
            while True:
                done, _ = await asyncio.wait({ended}, timeout=WATCH_SECONDS)
                if done:
                    return
                if await self._stalled():
                    log.error("engine_stalled", seconds=self._settings.stall_seconds)
                    self._kill()
                    return
        finally:
            ended.cancel()

    async def _stalled(self) -> bool:
        """Work is there and nothing has moved for too long. A probe that fails is no progress, and no verdict."""
        now = self._clock.monotonic()
        if not self._working():
            self._progress_at = now
            return False
        with contextlib.suppress(EngineGone):
            progress = (await self.adapter.stats()).progress
            if progress != self._progress:
                self._progress, self._progress_at = progress, self._clock.monotonic()
        return not self.progressing()

    async def _stop(self, keeper: asyncio.subprocess.Process) -> None:
        """End keeper and engine, whatever state they are in."""
        if keeper.returncode is None:
            keeper.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.stop_seconds + 3):
                    await keeper.wait()
        if keeper.returncode is None:
            keeper.kill()
            await keeper.wait()
        self._kill()  # also when the keeper itself was killed
        self._paths.pid_file.unlink(missing_ok=True)


def _open_log(path: Path) -> int:
    """Append to the engine's log; a large one becomes `.1` first."""
    if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
        path.replace(path.with_suffix(path.suffix + ".1"))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


class RemoteEngine:
    """`base.EngineHost` over a server that somebody else runs (ENGINE_URL): watched, never started or stopped."""

    def __init__(self, *, adapter: EngineAdapter, on_change: Callable[[], None]) -> None:
        self.adapter = adapter
        self._on_change = on_change
        self._ready = asyncio.Event()
        self._incarnation = 0

    @property
    def incarnation(self) -> int:
        return self._incarnation

    @property
    def ready(self) -> bool:
        return self._ready.is_set()

    async def wait_ready(self) -> None:
        await self._ready.wait()

    def note_progress(self) -> None:
        """Nothing to note: its owner watches it."""

    def progressing(self) -> bool:
        return self.ready

    async def has_died(self, *, incarnation: int) -> bool:
        return incarnation != self._incarnation or not await self._alive()

    async def run(self) -> None:
        while True:
            alive = await self._alive()
            if alive and not self.ready:
                self._incarnation += 1
                self._ready.set()
                self._on_change()
            elif not alive:
                self._ready.clear()
            await asyncio.sleep(WATCH_SECONDS)

    async def _alive(self) -> bool:
        """An OpenAI-compatible server need not have /health; it has a model list."""
        if await self.adapter.health() is Health.DEAD:
            return False
        try:
            await self.adapter.facts()
        except EngineError:
            return False
        return True
