"""The simulated world's mechanics: a virtual clock, processes as generators, a network that delays, loses, reorders.

Used by `world`. A process yields a `Call` to a store or a `Sleep` and is resumed with the answer, or with LOST where
request or reply did not come. Between two yields nothing can come between; at each yield it can be killed or frozen.
Invariant: everything that happens is decided by the seed: one queue of events, ordered by time and then by number.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Lost(Enum):
    """The answer of a call whose request or reply was lost: nobody knows whether it was done."""

    LOST = "lost"


LOST = Lost.LOST
START_US = 1_800_000_000_000_000


@dataclass(frozen=True, slots=True)
class Call:
    """One script in one slot. `run` gets the time at which it arrives (microseconds)."""

    name: str
    run: Callable[[int], Any]


@dataclass(frozen=True, slots=True)
class Sleep:
    """Microseconds."""

    us: int


Process = Generator[Call | Sleep, Any, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """What the network does. Times in microseconds; `loss` of each request and of each reply."""

    delay_us: tuple[int, int] = (200, 3_000)
    slow_us: int = 400_000  # now and then a message is this late, and overtaken by later ones
    slow: float = 0.02
    loss: float = 0.03
    timeout_us: int = 1_000_000


@dataclass(slots=True)
class Running:
    """A process that lives. `frozen_until`: what it is told before, it hears then."""

    name: str
    process: Process
    alive: bool = True
    frozen_until: int = 0
    writes: int = 0
    dies_at_write: int = 0  # 0: never
    on_death: Callable[[], None] | None = None


@dataclass(slots=True)
class Clock:
    """The event loop. `now` in microseconds."""

    seed: int
    weather: Weather
    now: int = START_US
    _notes: list[tuple[int, str, object]] = field(default_factory=list)
    _events: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)
    _number: int = 0
    chance: random.Random = field(init=False)
    calm: bool = False  # the faults are over

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)  # noqa: S311 - a draw, no secret

    def at(self, when: int, what: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (max(when, self.now), self._number, what))

    def run(self, *, until: int) -> None:
        """Every event up to then."""
        while self._events and self._events[0][0] <= until:
            self.now, _, what = heapq.heappop(self._events)
            what()
        self.now = max(self.now, until)

    def spawn(self, name: str, process: Process) -> Running:
        running = Running(name, process)
        self.at(self.now, lambda: self._resume(running, None))
        return running

    def kill(self, running: Running) -> None:
        """Between two of its writes. What it had sent still arrives; no answer is heard."""
        if running.alive:
            running.alive = False
            running.process.close()
            self.note(f"{running.name} dies")
            if running.on_death is not None:
                running.on_death()

    def note(self, text: str, answer: object = "") -> None:
        self._notes.append((self.now, text, answer))

    @property
    def trace(self) -> list[str]:
        """What happened, a line each: seconds of virtual time, who, what, and the answer."""
        return [f"{(now - START_US) / 1e6:10.4f} {text} {answer!r:.120}" for now, text, answer in self._notes]

    def _resume(self, running: Running, answer: Any) -> None:
        if not running.alive:
            return
        if running.frozen_until > self.now:
            self.at(running.frozen_until, lambda: self._resume(running, answer))
            return
        try:
            effect = running.process.throw(answer) if isinstance(answer, Exception) else running.process.send(answer)
        except StopIteration:
            running.alive = False
            return
        if isinstance(effect, Sleep):
            self.at(self.now + effect.us, lambda: self._resume(running, None))
            return
        self._send(running, effect)
        running.writes += 1
        if running.dies_at_write == running.writes:
            self.kill(running)

    def _send(self, running: Running, call: Call) -> None:
        """The request on its way, its reply on its way back; either may be lost, each takes its own time."""
        lost_request, lost_reply = self._loses(), self._loses()
        deadline = self.now + self.weather.timeout_us
        answered: list[bool] = []

        def hear(answer: Any) -> None:
            if not answered:
                answered.append(True)
                self._resume(running, answer)

        def arrive() -> None:
            try:
                answer = call.run(self.now)
            except Exception as refusal:  # noqa: BLE001 - a refusal travels back like any answer
                answer = refusal
            if call.name != "read":
                self.note(f"{running.name} {call.name}", answer)
            if not lost_reply:
                self.at(self.now + self._delay(), lambda: hear(answer))

        if not lost_request:
            self.at(self.now + self._delay(), arrive)
        self.at(deadline, lambda: hear(LOST))

    def _loses(self) -> bool:
        return self.chance.random() < self.weather.loss and not self.calm

    def _delay(self) -> int:
        delay = self.chance.randint(*self.weather.delay_us)
        late = self.chance.random() < self.weather.slow and not self.calm
        return delay + (self.chance.randint(0, self.weather.slow_us) if late else 0)
