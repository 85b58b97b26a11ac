"""Step 4, GUARDRAIL: guardrails-ai validators in processes of their own. Called by `guard` and `stream`.

Invariants:
- A call ends within its deadline (after the wait for a process, which has a bound of its own); a process that is late
  is killed, never waited for, and its answer is never used for another call.
- The outcome says what happened: only RAN means that the validator judged the whole text.
- Nothing is started until a policy asks for a validator. A process inherits no variable of ours, hence no secret.
"""

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safety.engines import frames
from safety.engines.breaker import Breaker
from safety.policy import ValidatorCall
from safety.verdicts import RuleState
from stores.system import SystemClock

TEXT_CHARS_MAX = 1_000_000
START_SECONDS_MAX = 60.0
WAIT_SECONDS_MAX = 5.0
FAILURES_MAX = 5
REST_SECONDS = 30.0
_RC = "id=\ntoken=\nenable_metrics=false\nuse_remote_inferencing=false\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """`passed` and `fixed` mean something only when `state` is RAN. `spent_us` includes every wait."""

    state: RuleState
    passed: bool
    fixed: str | None
    spent_us: int


class ValidatorPool:
    """`processes` validators at a time; `queue_max` further calls wait, more are refused at once.

    `await pool.warm()` starts the processes ahead of the first call; `await pool.close()` ends them. Both optional:
    a process starts when it is needed and ends with its parent.
    """

    def __init__(
        self,
        *,
        processes: int = 1,
        queue_max: int = 64,
        monotonic: Callable[[], float] | None = None,
        command: tuple[str, ...] = (sys.executable, "-m", "safety.engines.process"),
    ) -> None:
        self._idle = [_Process(command) for _ in range(processes)]
        self._all = tuple(self._idle)
        self._free = asyncio.Semaphore(processes)
        self._waiting = 0
        self._queue_max = queue_max
        self._monotonic = monotonic or SystemClock().monotonic
        self._breakers: dict[str, Breaker] = {}
        self.refused_lookups = 0

    async def validate(self, call: ValidatorCall, text: str) -> Validation:
        """Judge a whole text. Never raises for what a validator does: the state tells."""
        began = self._monotonic()
        breaker = self._breakers.setdefault(call.validator, Breaker(FAILURES_MAX, REST_SECONDS))
        if len(text) > TEXT_CHARS_MAX or self._waiting >= self._queue_max or not breaker.admits(now=began):
            return self._outcome(began, RuleState.REFUSED)
        self._waiting += 1
        try:
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                await self._free.acquire()
        except TimeoutError:
            return self._outcome(began, RuleState.REFUSED)
        finally:
            self._waiting -= 1
        process = self._idle.pop()
        try:
            result = await self._ask(process, call, text, began)
        finally:
            self._idle.append(process)
            self._free.release()
        if result.state is RuleState.RAN:
            breaker.succeeded()
        else:
            breaker.failed(now=self._monotonic())
        return result

    async def warm(self) -> None:
        """Start the processes now. Raises TimeoutError, OSError or FrameError when one cannot start."""
        async with asyncio.TaskGroup() as tasks:
            for process in self._all:
                tasks.create_task(process.start())

    async def close(self) -> None:
        """End the processes."""
        for process in self._all:
            await process.kill()

    @property
    def pids(self) -> tuple[int, ...]:
        """The running processes."""
        return tuple(process.pid for process in self._all if process.pid is not None)

    async def _ask(self, process: "_Process", call: ValidatorCall, text: str, began: float) -> Validation:
        try:
            await process.start()
            answer = await process.ask(call, text)
        except TimeoutError:
            return self._outcome(began, RuleState.TIMED_OUT)
        except OSError:  # FrameError among them: the process died or cannot be started
            return self._outcome(began, RuleState.FAILED)
        self.refused_lookups += int(answer.get("refused", 0)) - process.refused
        process.refused = int(answer.get("refused", 0))
        if "error" in answer:
            return self._outcome(began, RuleState.FAILED)
        fixed = answer.get("fixed")
        return self._outcome(
            began, RuleState.RAN, passed=answer.get("passed") is True, fixed=fixed if isinstance(fixed, str) else None
        )

    def _outcome(self, began: float, state: RuleState, *, passed: bool = False, fixed: str | None = None) -> Validation:
        spent = round((self._monotonic() - began) * 1_000_000)
        return Validation(state=state, passed=passed, fixed=fixed, spent_us=spent)


class _Process:
    """One child, started on demand and killed whenever its state is in doubt."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command
        self._child: asyncio.subprocess.Process | None = None
        self._home: tempfile.TemporaryDirectory[str] | None = None
        self._starting = asyncio.Lock()
        self.refused = 0

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None and self._child.returncode is None else None

    async def start(self) -> None:
        """Run, if it does not. Raises TimeoutError, OSError."""
        async with self._starting:
            if self.pid is None:
                await self.kill()
                await self._spawn()

    async def _spawn(self) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="weir-validators-", ignore_cleanup_errors=True)
        home = Path(self._home.name)
        await asyncio.to_thread((home / ".guardrailsrc").write_text, _RC, encoding="utf-8")
        try:
            async with asyncio.timeout(START_SECONDS_MAX):
                self._child = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.DEVNULL,
                    env=_environment(home),
                    cwd=home,
                    start_new_session=True,  # a Ctrl-C for us is ours to pass on
                )
                assert self._child.stdout is not None
                ready = await frames.read(self._child.stdout)
                self.refused = int(ready.get("refused", 0))
        except BaseException:
            await self.kill()
            raise

    async def ask(self, call: ValidatorCall, text: str) -> dict[str, Any]:
        """One request, one answer. Raises TimeoutError, OSError; then, and when cancelled, the child is killed."""
        child = self._child
        assert child is not None
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            async with asyncio.timeout(call.deadline_ms / 1000):
                child.stdin.write(frames.pack({"validator": call.validator, "arguments": call.arguments, "text": text}))
                await child.stdin.drain()
                return await frames.read(child.stdout)
        except BaseException:
            await self.kill()
            raise

    async def kill(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
        home, self._home = self._home, None
        if home is not None:
            home.cleanup()


def _environment(home: Path) -> dict[str, str]:
    """What guardrails-ai needs, and no more: its home (temporary files hold texts), telemetry and downloads off."""
    return {
        "HOME": str(home),
        "TMPDIR": str(home),
        "PATH": os.environ.get("PATH", ""),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OTEL_SDK_DISABLED": "true",
        "HF_HUB_OFFLINE": "1",
        "LANG": "C.UTF-8",
    }
