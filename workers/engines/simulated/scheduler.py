"""Continuous batching in steps, as vLLM's V1 scheduler does it: decode first, then prefill in chunks. Pure.

Called by `engine`. Invariants: a step computes at most `batched_tokens_max` tokens; a sequence emits one token per step
once its prompt is computed; when blocks run out the youngest running sequence is preempted and computed again later,
without emitting a token twice.
"""

from collections import deque
from dataclasses import dataclass, field

from workers.engines.simulated.cache import BlockCache


@dataclass(slots=True, kw_only=True)
class Sequence:
    """One choice of one request. `script` are the tokens that it will emit; the engine decided them beforehand.

    `stored` tokens have a place in the cache, `computed` of them are computed: fewer means that it is in prefill.
    """

    name: str
    prompt: tuple[int, ...]
    script: tuple[int, ...]
    salt: str
    stored: int = 0
    computed: int = 0
    emitted: int = 0
    cached: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one engine step did: `tokens` emitted by sequence name, and the work that it took."""

    tokens: tuple[tuple[str, int], ...] = ()
    finished: tuple[str, ...] = ()
    prefill_tokens: int = 0
    decoded: int = 0
    preempted: int = 0


@dataclass(slots=True)
class Totals:
    """Counters for /metrics since the start."""

    steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0
    preemptions: int = 0


@dataclass(slots=True)
class _Work:
    budget: int
    prefill: int = 0
    decoded: int = 0
    preempted: int = 0
    tokens: list[tuple[str, int]] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)


class Scheduler:
    """Sequences wait in arrival order and run together up to `sequences_max`."""

    def __init__(self, *, cache: BlockCache, sequences_max: int, batched_tokens_max: int) -> None:
        self.cache = cache
        self.sequences_max = sequences_max
        self.batched_tokens_max = batched_tokens_max
        self.totals = Totals()
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises ValueError when the cache could never hold it."""
        longest = len(sequence.prompt) + len(sequence.script)
        if -(-longest // self.cache.block_tokens) > self.cache.blocks:
            raise ValueError(f"{longest} tokens do not fit {self.cache.blocks} blocks of {self.cache.block_tokens}")
        self._waiting.append(sequence)

    def abort(self, name: str) -> None:
        """Forget a sequence and give its blocks back. Unknown names are ignored."""
        self.cache.close(sequence=name)
        self._running = [item for item in self._running if item.name != name]
        self._waiting = deque(item for item in self._waiting if item.name != name)

    def step(self) -> StepResult:
        """Compute one batch. An empty result means that there is nothing to do."""
        work = _Work(budget=self.batched_tokens_max)
        self._decode(work)
        self._prefill(work)
        if not work.tokens and not work.prefill:
            return StepResult(preempted=work.preempted)
        self.totals.steps += 1
        self.totals.generation_tokens += len(work.tokens)
        self.totals.preemptions += work.preempted
        return StepResult(
            tokens=tuple(work.tokens),
            finished=tuple(work.finished),
            prefill_tokens=work.prefill,
            decoded=work.decoded,
            preempted=work.preempted,
        )

    def _decode(self, work: _Work) -> None:
        for sequence in list(self._running):
            if sequence not in self._running or sequence.computed < sequence.stored or work.budget == 0:
                continue
            if not self._make_room(sequence, work):
                continue
            work.budget -= 1
            work.decoded += 1
            sequence.stored += 1
            sequence.computed += 1
            self._emit(sequence, work)

    def _make_room(self, sequence: Sequence, work: _Work) -> bool:
        """Store the last emitted token, preempting the youngest until it fits. False when itself was preempted."""
        last = sequence.script[sequence.emitted - 1]
        while not self.cache.grow(sequence=sequence.name, token=last):
            victim = self._running.pop()
            self.cache.close(sequence=victim.name)
            victim.stored = victim.computed = 0
            self._waiting.appendleft(victim)
            work.preempted += 1
            if victim is sequence:
                return False
        return True

    def _prefill(self, work: _Work) -> None:
        for sequence in list(self._running):
            if sequence.computed < sequence.stored:
                self._compute(sequence, work)
        while self._waiting and work.budget and len(self._running) < self.sequences_max:
            sequence = self._waiting[0]
            tokens = sequence.prompt + sequence.script[: sequence.emitted]
            cached = self.cache.open(sequence=sequence.name, tokens=tokens, salt=sequence.salt)
            if cached is None:
                return
            self._waiting.popleft()
            self._running.append(sequence)
            sequence.stored, sequence.computed = len(tokens), cached
            self.totals.queried_tokens += len(tokens)
            self.totals.hit_tokens += cached
            if sequence.cached is None:
                sequence.cached = cached
            self._compute(sequence, work)

    def _compute(self, sequence: Sequence, work: _Work) -> None:
        chunk = min(work.budget, sequence.stored - sequence.computed)
        sequence.computed += chunk
        work.budget -= chunk
        work.prefill += chunk
        if chunk and sequence.computed == sequence.stored:
            if sequence.emitted == 0:
                self.totals.prompt_tokens += len(sequence.prompt)
            self._emit(sequence, work)

    def _emit(self, sequence: Sequence, work: _Work) -> None:
        work.tokens.append((sequence.name, sequence.script[sequence.emitted]))
        sequence.emitted += 1
        if sequence.emitted == len(sequence.script):
            work.finished.append(sequence.name)
            self.cache.close(sequence=sequence.name)
            self._running.remove(sequence)
