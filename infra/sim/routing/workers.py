"""An engine as routing sees it: prompts one after the other, answers side by side, blocks cached. Pure.

Called by `run`. Sizes in tokens, times in seconds since the start. Invariant: a block is known by its whole prefix and
its tenant's salt; the cache never holds more blocks than it has, and drops the one that was used longest ago.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

Block = int  # of one chain of one tenant: the caller makes it so


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModel:
    """Rates and sizes of one engine. A step of decoding takes `step` and `step_each` more for every running request."""

    prefill_tokens_per_s: float = 16_000.0
    step: float = 0.010
    step_each: float = 0.0002
    slots: int = 64
    cache_tokens: int = 288_000
    overhead: float = 0.0  # of each request, before its prompt is computed

    def prefill_seconds(self, uncached: int) -> float:
        return self.overhead + uncached / self.prefill_tokens_per_s

    def decode_seconds(self, output: int, running: int) -> float:
        return output * (self.step + self.step_each * running)


@dataclass(slots=True, eq=False)
class Request:
    """`blocks`: the chain of the prompt's whole blocks; `after`: the same with the answer's. The rest is what came."""

    number: int
    at: float
    tenant: int
    prompt: int
    output: int
    blocks: Sequence[Block]
    after: Sequence[Block]
    block_tokens: int
    cached: int = 0
    started: float = -1.0
    first_token: float = -1.0
    done: float = -1.0
    worker: int = -1

    def matched(self, found: int) -> int:
        """Tokens of so many blocks; the last token of a prompt is always computed."""
        return min(found * self.block_tokens, self.prompt - 1)


@dataclass(slots=True)
class BlockCache:
    """Least recently used first out, by blocks."""

    blocks_max: int
    _held: OrderedDict[Block, None] = field(default_factory=OrderedDict)

    def match(self, chain: Sequence[Block]) -> int:
        """How many blocks of the chain are here, from its beginning."""
        held = self._held
        for index, block in enumerate(chain):
            if block not in held:
                return index
        return len(chain)

    def add(self, chain: Sequence[Block]) -> None:
        """The chain's end is dropped before its beginning."""
        held = self._held
        for block in reversed(chain):
            held[block] = None
            held.move_to_end(block)
        while len(held) > self.blocks_max:
            held.popitem(last=False)

    def __len__(self) -> int:
        return len(self._held)


@dataclass(slots=True, eq=False)
class Worker:
    """One engine with its queue. `index` is what a router believes it holds: told when a request is bound to it."""

    number: int
    model: EngineModel
    cache: BlockCache
    index: BlockCache
    waiting: deque[Request] = field(default_factory=deque)
    prefilling: Request | None = None
    prefill_ends: float = 0.0
    running: int = 0
    bound: int = 0  # in flight here, in any state
    backlog: int = 0  # uncached tokens that were believed to be before the next prompt
    _believed: dict[int, int] = field(default_factory=dict)

    def bind(self, request: Request) -> None:
        """The request is this worker's from now on."""
        uncached = request.prompt - request.matched(self.index.match(request.blocks))
        self._believed[request.number] = uncached
        self.backlog += uncached
        self.bound += 1
        self.index.add(request.blocks)
        self.waiting.append(request)
        request.worker = self.number

    def start_next(self, now: float) -> Request | None:
        """Begin the next prompt, when none is computed and a place is free."""
        if self.prefilling is not None or not self.waiting or self.running >= self.model.slots:
            return None
        request = self.waiting.popleft()
        request.cached = request.matched(self.cache.match(request.blocks))
        request.started = now
        self.prefilling, self.running = request, self.running + 1
        self.prefill_ends = now + self.model.prefill_seconds(request.prompt - request.cached)
        return request

    def prefilled(self, now: float) -> Request:
        """The prompt is computed; its answer runs from here on."""
        request = self.prefilling
        assert request is not None
        self.prefilling = None
        self.backlog -= self._believed.pop(request.number)
        self.cache.add(request.blocks)
        request.first_token = now
        return request

    def finished(self, request: Request, now: float) -> None:
        request.done = now
        self.cache.add(request.after)
        self.index.add(request.after)
        self.running -= 1
        self.bound -= 1

    @property
    def usage(self) -> float:
        """Of the cache, as a part of one."""
        return len(self.cache) / self.cache.blocks_max


def make_workers(count: int, model: EngineModel, block_tokens: int) -> list[Worker]:
    """Equal ones, empty."""
    blocks = max(model.cache_tokens // block_tokens, 1)
    return [
        Worker(number=number, model=model, cache=BlockCache(blocks), index=BlockCache(blocks))
        for number in range(count)
    ]
