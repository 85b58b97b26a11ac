"""Runs the pure scheduler against the clock and hands tokens to the requests that wait for them. Called by `app`."""

import asyncio
import os
from dataclasses import dataclass, field

from workers.engines.simulated.cache import BlockCache
from workers.engines.simulated.scheduler import Scheduler, Sequence, StepResult
from workers.engines.simulated.settings import SimulatedSettings

DEATH_CODE = 86


class GenerationFailed(RuntimeError):
    """The engine gave up on this request (a fault that a test asked for)."""


class CoreLost(RuntimeError):
    """The engine's server lives on without its engine, as vLLM's does for some seconds."""


@dataclass(frozen=True, slots=True)
class Emission:
    """One more token of one choice; `position` counts from 0."""

    choice: int
    position: int
    finished: bool


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of one request: `die`, `hang` or `error` once it has emitted `after` tokens."""

    kind: str
    after: int


@dataclass(slots=True)
class Generation:
    """A request inside the engine: its choices as sequences, and what they emitted and nobody took yet."""

    sequences: tuple[Sequence, ...]
    fault: Fault | None
    emitted: int = 0
    # Bounded by the tokens of the scripts.
    queue: "asyncio.Queue[Emission | None]" = field(default_factory=asyncio.Queue)

    @property
    def cached_tokens(self) -> int:
        return self.sequences[0].cached or 0


class SimulatedEngine:
    """Steps while there is work; sleeps as long as a step of a real engine would take."""

    def __init__(self, settings: SimulatedSettings) -> None:
        self.settings = settings
        cache = BlockCache(blocks=settings.blocks, block_tokens=settings.block_tokens)
        self.scheduler = Scheduler(
            cache=cache, sequences_max=settings.sequences_max, batched_tokens_max=settings.batched_tokens_max
        )
        self._owners: dict[str, tuple[Generation, int]] = {}
        self._work = asyncio.Event()
        self._hung = False
        self.is_lost = False

    def lose_core(self) -> None:
        """Fail what runs and what will come, as when vLLM's engine core is killed: nothing here works any more."""
        self.is_lost = self._hung = True
        for generation in {id(owner): owner for owner, _ in self._owners.values()}.values():
            generation.queue.put_nowait(None)
        self._owners.clear()

    def submit(self, generation: Generation) -> None:
        """Queue all choices. Raises ValueError when one could never fit, and CoreLost."""
        if self.is_lost:
            raise CoreLost("the engine core died")
        for sequence in generation.sequences:
            self.scheduler.add(sequence)
        for choice, sequence in enumerate(generation.sequences):
            self._owners[sequence.name] = (generation, choice)
        self._work.set()

    def abort(self, generation: Generation) -> None:
        for sequence in generation.sequences:
            self._owners.pop(sequence.name, None)
            self.scheduler.abort(sequence.name)

    async def run(self) -> None:
        """Step for ever. Cancelled at shutdown."""
        while True:
            result = StepResult() if self._hung else self.scheduler.step()
            if not result.tokens and not result.prefill_tokens:
                self._work.clear()
                await self._work.wait()
                continue
            await asyncio.sleep(self._duration(result))
            self._deliver(result)

    def _duration(self, result: StepResult) -> float:
        seconds = 0.0
        if self.settings.prefill_tokens_per_second:
            seconds += result.prefill_tokens / self.settings.prefill_tokens_per_second
        if self.settings.decode_tokens_per_second and result.decoded:
            seconds += 1 / self.settings.decode_tokens_per_second
        return seconds

    def _deliver(self, result: StepResult) -> None:
        finished = set(result.finished)
        for name, _token in result.tokens:
            if name not in self._owners:
                continue  # aborted while the step ran
            generation, choice = self._owners[name]
            done = name in finished
            position = generation.sequences[choice].emitted - 1
            generation.queue.put_nowait(Emission(choice=choice, position=position, finished=done))
            generation.emitted += 1
            if done:
                del self._owners[name]
            self._fault(generation)
        total = self.scheduler.totals.generation_tokens
        if 0 < self.settings.die_after_tokens <= total:
            os._exit(DEATH_CODE)
        if 0 < self.settings.hang_after_tokens <= total:
            self._hung = True

    def _fault(self, generation: Generation) -> None:
        fault = generation.fault
        if fault is None or generation.emitted < fault.after:
            return
        if fault.kind == "die":
            os._exit(DEATH_CODE)
        if fault.kind == "hang":
            self._hung = True
        if fault.kind == "error":
            self.abort(generation)
            generation.queue.put_nowait(None)
