"""The engine as the worker sees it: one protocol, whatever runs behind it. Called by `loop`, `generation`.

Invariants: counts come from the engine's own usage, cumulative over all choices; a generation that its reader leaves is
aborted; a finish reason is the engine's word, never made up here.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from contracts.jobs import Endpoint
from contracts.tokens import TokenCounts


class EngineError(RuntimeError):
    """The engine did not do what was asked."""


class EngineGone(EngineError):
    """No answer, or a broken one: the process may be dead. The caller asks the host."""


class EngineRefused(EngineError):
    """The engine refused this request; running it again cannot help. Text and `param` are the engine's own."""

    def __init__(self, text: str, *, param: str = "") -> None:
        super().__init__(text)
        self.param = param


class EngineBroke(EngineError):
    """The engine reported a failure of this one request, or broke its own protocol.

    `param`: the field of the request on which it fails before its first token: a grammar that it cannot compile.
    """

    def __init__(self, text: str, *, param: str = "") -> None:
        super().__init__(text)
        self.param = param


class EngineKind(StrEnum):
    VLLM = "vllm"
    SIMULATED = "simulated"
    OPENAI = "openai"  # any OpenAI-compatible server; no child process


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Where engines differ. What an engine lacks is not asked of it."""

    continuous_usage: bool  # every chunk carries usage
    token_ids: bool
    cache_salt: bool
    request_id: bool  # takes our id for its own logs
    progress: bool  # /metrics with vLLM's names
    tools: bool = True  # calls tools; where not, a request that could lead to a call is refused before the queue
    done_event: bool = True  # ends a stream with `[DONE]`; where not, usage and a finish reason of each choice end it
    replays: bool = False  # goes on from token ids where another engine stopped (`Replaying`)


FULL = Capabilities(
    continuous_usage=True, token_ids=True, cache_salt=True, request_id=True, progress=True, replays=True
)
PLAIN = Capabilities(
    continuous_usage=False, token_ids=False, cache_salt=False, request_id=False, progress=False, done_event=False
)


def capabilities_of(kind: EngineKind) -> Capabilities:
    return PLAIN if kind is EngineKind.OPENAI else FULL


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """What to generate. `body` is the validated client body; the adapter sets what is its own."""

    request_id: str
    endpoint: Endpoint
    body: dict[str, Any]
    max_tokens: int
    cache_salt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChunk:
    """One event of the stream. `body` is the engine's chunk as it came; `counts` is all that was counted so far."""

    body: dict[str, Any]
    counts: TokenCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What a running engine says of itself."""

    served_model: str
    context_tokens: int
    block_tokens: int
    blocks: int
    cache_dtype: str
    version: str
    tools: bool = True
    dtype: str = "auto"  # "auto": the model's own

    @property
    def kv_tokens(self) -> int:
        return self.block_tokens * self.blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A moment of a running engine. `progress` changes whenever the engine does any work, prefill included."""

    running: int
    waiting: int
    kv_usage: float
    progress: tuple[float, ...]


class Health(StrEnum):
    """What an engine says of itself. It may be DEAD and still answer: a server outlives the process of its model."""

    WELL = "well"
    DEAD = "dead"
    SILENT = "silent"


class EngineAdapter(Protocol):
    """Talks to one running engine. Raises EngineGone when it does not answer in time."""

    capabilities: Capabilities

    def generate(self, request: EngineRequest) -> AbstractAsyncContextManager[AsyncIterator[EngineChunk]]:
        """The stream of one request. Leaving the context aborts it. Raises EngineError's kinds."""

    async def health(self) -> Health:
        """Whether the engine takes requests at all; says nothing about progress. Never raises."""

    async def facts(self) -> EngineFacts: ...

    async def stats(self) -> EngineStats: ...

    async def aclose(self) -> None: ...


@runtime_checkable
class Replaying(Protocol):
    """An adapter whose engine also speaks in token ids. Raises EngineGone, EngineRefused, EngineBroke."""

    async def tokenize(self, *, endpoint: Endpoint, body: Mapping[str, Any]) -> list[int]:
        """The prompt of a request, as `generate` would make it of `body`."""

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids, special ones included."""


class EngineHost(Protocol):
    """Keeps one engine running: a child process, or a server elsewhere."""

    adapter: EngineAdapter

    async def run(self) -> None:
        """Start the engine and keep it up, until cancelled. Raises EngineError when it gives up."""

    async def wait_ready(self) -> None: ...

    @property
    def ready(self) -> bool: ...

    @property
    def incarnation(self) -> int:
        """Counts starts; a request remembers the one that it ran on."""

    def note_progress(self) -> None:
        """A token came out."""

    def progressing(self) -> bool:
        """Whether the engine has done any work lately, or has none to do."""

    async def has_died(self, *, incarnation: int) -> bool:
        """Whether this incarnation is gone; waits a little for a death that is under way."""
