"""Step 3, LIMITS: a deadline and a circuit breaker around the store of the limits. Used by `Limits` and by admission.

Invariant: fails closed. A store that is away or slow is `Unavailable` within `DEADLINE_SECONDS`, and once it has failed
`FAILURES_MAX` times in a row, at once: then one call per `REST_SECONDS` is let through to see whether it is back. What
this process was too busy to hear is no failure of the store.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from redis.exceptions import RedisError, ResponseError

from contracts.clock import Clock
from contracts.errors import Unavailable

DEADLINE_SECONDS = 2.0
DEADLINE_STEPS = 8
FAILURES_MAX = 3
REST_SECONDS = 1.0
RETRY_AFTER_MS = 1_000


@dataclass(slots=True)
class Breaker:
    """Pure: the caller brings the time (monotonic seconds)."""

    failures: int = 0
    opened_at: float | None = None

    def admits(self, *, now: float) -> bool:
        """May a call be made? While open, one call is let through per rest."""
        if self.opened_at is None:
            return True
        if now - self.opened_at < REST_SECONDS:
            return False
        self.opened_at = now
        return True

    def rests(self, *, now: float) -> bool:
        """Whether a call would be refused now; asking takes nobody's turn."""
        return self.opened_at is not None and now - self.opened_at < REST_SECONDS

    def succeeded(self) -> None:
        self.failures, self.opened_at = 0, None

    def failed(self, *, now: float) -> None:
        self.failures += 1
        if self.failures >= FAILURES_MAX:
            self.opened_at = now


@dataclass(slots=True)
class Gate:
    """One for each client of the store, shared by all who use it."""

    clock: Clock
    breaker: Breaker = field(default_factory=Breaker)

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """Bounds what is done inside. Raises Unavailable; a script's own complaint does not open the breaker."""
        if not self.breaker.admits(now=self.clock.monotonic()):
            raise _unavailable()
        try:
            async with _deadline():
                yield
        except ResponseError as error:
            raise _unavailable() from error
        except (RedisError, TimeoutError, OSError) as error:
            self.breaker.failed(now=self.clock.monotonic())
            raise _unavailable() from error
        self.breaker.succeeded()

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[None]:
        """For what comes before a call, may be cached, and asks the same store: its failures count, its success proves
        nothing and takes no turn. Raises Unavailable.
        """
        if self.breaker.rests(now=self.clock.monotonic()):
            raise _unavailable()
        try:
            async with _deadline():
                yield
        except Unavailable as error:
            if isinstance(error.__cause__, RedisError | TimeoutError | OSError):
                self.breaker.failed(now=self.clock.monotonic())
            raise
        except (RedisError, TimeoutError, OSError) as error:
            self.breaker.failed(now=self.clock.monotonic())
            raise _unavailable() from error


@asynccontextmanager
async def _deadline() -> AsyncIterator[None]:
    """`DEADLINE_SECONDS` in steps, each begun when the one before has ended: however long the loop was busy in between,
    it counts as one step, after which an answer that came meanwhile is read first. Raises TimeoutError.
    """
    loop, left = asyncio.get_running_loop(), DEADLINE_STEPS
    seconds = DEADLINE_SECONDS / DEADLINE_STEPS
    timer: asyncio.TimerHandle

    def step() -> None:
        nonlocal left, timer
        left -= 1
        if left == 0:
            timeout.reschedule(loop.time())
        else:
            timer = loop.call_later(seconds, step)

    timer = loop.call_later(seconds, step)
    try:
        async with asyncio.timeout(None) as timeout:
            yield
    finally:
        timer.cancel()


def _unavailable() -> Unavailable:
    return Unavailable("The limits cannot be checked right now.", retry_after_ms=RETRY_AFTER_MS)
