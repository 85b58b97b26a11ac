"""Step 4, GUARDRAIL: guardrails-ai validators in processes of their own. Called by `guard` and `stream`.

Invariants:
- A call ends within its deadline (after the wait for a free and ready process, which has bounds of its own); a process
  that is late is killed and started anew at once, and its answer is never used for another call.
- A breaker belongs to one validator with its arguments: what one tenant wrote never shuts out another's rule.
- The outcome says what happened: only RAN means that the validator judged the whole text.
- Nothing is started until a policy asks for a validator. A process inherits no variable of ours, hence no secret.
"""

import asyncio
import contextlib
import logging
import os
import sys
import tempfile
from collections import OrderedDict
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
START_SECONDS_MAX = 90.0  # a process that is not ready by then is started anew
READY_SECONDS_MAX = 15.0  # how long one call waits for a process that is starting: usually three seconds
WAIT_SECONDS_MAX = 5.0  # how long one call waits for a process that is busy
FAILURES_MAX = 5
REST_SECONDS = 30.0
BREAKERS_MAX = 1_024
_log = logging.getLogger(__name__)
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
        self._breakers: OrderedDict[tuple[str, str], Breaker] = OrderedDict()
        self.refused_lookups = 0

    async def validate(self, call: ValidatorCall, text: str) -> Validation:
        """Judge a whole text. Never raises for what a validator does: the state tells."""
        began = self._monotonic()
        breaker = self._breaker(call)
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
        elif result.state is not RuleState.REFUSED:
            breaker.failed(now=self._monotonic())
        return result

    async def warm(self) -> None:
        """Start the processes now and wait until they are ready. Raises TimeoutError, OSError when one cannot start."""
        for process in self._all:
            await process.start(now=self._monotonic())
        for process in self._all:
            await process.ready(wait_s=START_SECONDS_MAX)

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
            await process.start(now=self._monotonic())
            await process.ready(wait_s=READY_SECONDS_MAX)
        except TimeoutError:  # it goes on starting for the next call
            return self._outcome(began, RuleState.REFUSED)
        except OSError:
            return self._outcome(began, RuleState.FAILED)
        try:
            answer = await process.ask(call, text)
        except TimeoutError:
            await self._renew(process)
            return self._outcome(began, RuleState.TIMED_OUT)
        except OSError:  # FrameError among them: the process died
            await self._renew(process)
            return self._outcome(began, RuleState.FAILED)
        self.refused_lookups += int(answer.get("refused", 0)) - process.refused
        process.refused = int(answer.get("refused", 0))
        if "error" in answer:
            return self._outcome(began, RuleState.FAILED)
        fixed = answer.get("fixed")
        return self._outcome(
            began, RuleState.RAN, passed=answer.get("passed") is True, fixed=fixed if isinstance(fixed, str) else None
        )

    async def _renew(self, process: "_Process") -> None:
        """Start a killed process now, so that the next call finds it ready."""
        try:
            await process.start(now=self._monotonic())
        except OSError as error:
            _log.warning("a validator process cannot be started (%s); the next call tries again", type(error).__name__)

    def _breaker(self, call: ValidatorCall) -> Breaker:
        breaker = self._breakers.setdefault((call.validator, call.arguments), Breaker(FAILURES_MAX, REST_SECONDS))
        self._breakers.move_to_end((call.validator, call.arguments))
        while len(self._breakers) > BREAKERS_MAX:
            self._breakers.popitem(last=False)
        return breaker

    def _outcome(self, began: float, state: RuleState, *, passed: bool = False, fixed: str | None = None) -> Validation:
        spent = round((self._monotonic() - began) * 1_000_000)
        return Validation(state=state, passed=passed, fixed=fixed, spent_us=spent)


class _Process:
    """One child, started on demand and killed whenever its state is in doubt."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command
        self._child: asyncio.subprocess.Process | None = None
        self._home: tempfile.TemporaryDirectory[str] | None = None
        self._changing = asyncio.Lock()
        self._is_ready = False
        self._started_at = 0.0
        self.refused = 0

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None and self._child.returncode is None else None

    async def start(self, *, now: float) -> None:
        """Have a child, ready or on its way. Raises OSError."""
        async with self._changing:
            late = not self._is_ready and now - self._started_at > START_SECONDS_MAX
            if self.pid is None or late:
                await self.kill()
                await self._spawn()
                self._started_at = now

    async def _spawn(self) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="weir-validators-", ignore_cleanup_errors=True)
        home = Path(self._home.name)
        await asyncio.to_thread((home / ".guardrailsrc").write_text, _RC, encoding="utf-8")
        self._child = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=_environment(home),
            cwd=home,
            start_new_session=True,  # a Ctrl-C for us is ours to pass on
        )

    async def ready(self, *, wait_s: float) -> None:
        """Wait until the child has its validators; it goes on when we give up. Raises TimeoutError, OSError."""
        async with self._changing:
            child = self._child
            if self._is_ready or child is None or child.stdout is None:
                return
            try:
                async with asyncio.timeout(wait_s):
                    # One read, so that giving up loses nothing of it.
                    hello = await child.stdout.readexactly(len(frames.READY))
            except asyncio.IncompleteReadError as error:
                await self.kill()
                raise frames.FrameError("the process ended while it started") from error
            if hello != frames.READY:
                await self.kill()
                raise frames.FrameError("not a validator process")
            self._is_ready = True
            self.refused = 0

    async def ask(self, call: ValidatorCall, text: str) -> dict[str, Any]:
        """One request, one answer. Raises TimeoutError, OSError; then, and when cancelled, the child is killed."""
        child = self._child
        if child is None:
            raise frames.FrameError("there is no process")
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
        self._is_ready = False
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
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OTEL_SDK_DISABLED": "true",
        "HF_HUB_OFFLINE": "1",
        "LANG": "C.UTF-8",
    }
