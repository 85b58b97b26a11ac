"""The one adapter: OpenAI's HTTP dialect over a Unix socket or a URL. Called through `base.EngineAdapter`.

Invariants: an abort is the closing of the response; a stream that ends before it is whole is an error; usage of a
choice replaces what was counted for it before and is never added twice. Every wait has a bound (`Patience`).
"""

import asyncio
import errno
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson
import structlog

from contracts.jobs import Endpoint
from contracts.tokens import TokenCounts
from workers.engines import prometheus
from workers.engines.base import (
    Capabilities,
    EngineBroke,
    EngineChunk,
    EngineFacts,
    EngineGone,
    EngineRefused,
    EngineRequest,
    EngineStats,
    Health,
)
from workers.engines.sse import EventReader, EventTooLarge

PROBE_SECONDS = 5.0
ASK_SECONDS = 30.0  # an engine that shares its process with its model answers between two steps
KEEP_SECONDS = 3.0  # an idle connection; engines close theirs after five, and a request must not meet that
AGAIN_SECONDS = (0.0, 0.1)  # before a request is sent again whose connection was lost
OK = 200
ERROR_TEXT_MAX = 500
SETTLE_CHARS = 64  # of a text whose tokens are counted here; to count all of it with every chunk grows with its square
_BETWEEN_WORDS = re.compile(r"(?<=[^\W\d_]) (?=[^\W\d_])")  # letter, one space, letter
_REFUSALS = frozenset({400, 413, 422})  # what the client asked for cannot be done
_PROGRESS = (
    "vllm:iteration_tokens_total_count",
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
    "vllm:prefix_cache_queries_total",
    "vllm:kv_cache_usage_perc",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds to wait. The first byte may take a long prefill behind a full batch; later ones may not."""

    connect: float = 5.0
    first_byte: float = 600.0
    idle: float = 120.0


class HttpEngine:
    """One engine. `api_key` is for a server elsewhere; `count_tokens` stands in where no usage comes with chunks.

    `dtype` is what the engine was told to compute in, which none of its routes tells; "auto" is the model's own.
    """

    def __init__(
        self,
        *,
        model: str,
        capabilities: Capabilities,
        socket: str | None = None,
        url: str = "http://engine",
        api_key: str = "",
        connections_max: int = 512,
        patience: Patience | None = None,
        count_tokens: Callable[[str], int] | None = None,
        dtype: str = "auto",
    ) -> None:
        self.capabilities = capabilities
        self._dtype = dtype
        self._model = model
        self._patience = patience or Patience()
        self._count_tokens = count_tokens
        self._socket = socket
        self._url = url.removesuffix("/v1").rstrip("/")
        self._headers = {"accept-encoding": "identity"} | ({"authorization": f"Bearer {api_key}"} if api_key else {})
        self._connections_max = connections_max
        self._session: aiohttp.ClientSession | None = None

    def _client(self) -> aiohttp.ClientSession:
        """Opened at the first use, because it belongs to the loop that runs then."""
        if self._session is None:
            bounds: dict[str, Any] = {"limit": self._connections_max, "keepalive_timeout": KEEP_SECONDS}
            self._session = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(self._socket, **bounds)
                if self._socket
                else aiohttp.TCPConnector(**bounds),
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_read=self._patience.first_byte, sock_connect=self._patience.connect
                ),
            )
        return self._session

    @asynccontextmanager
    async def generate(self, request: EngineRequest) -> AsyncIterator[AsyncIterator[EngineChunk]]:
        """Stream one request. Raises EngineGone, EngineRefused, EngineBroke."""
        path = f"/v1/{request.endpoint.value}"
        try:
            response = await self._post(path, self._body(request), accept="text/event-stream")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise EngineGone(f"the engine did not answer: {_named(error)}") from error
        try:
            if response.status != OK:
                await self._refuse(response)
            async with aclosing(self._chunks(response, request.body)) as chunks:
                yield chunks
        finally:
            response.close()  # an answer that was read to its end has given its connection back before

    async def _post(
        self, path: str, body: dict[str, Any], *, accept: str = "*/*", **options: Any
    ) -> aiohttp.ClientResponse:
        """A server may close a kept connection just as a request is written to it, and has then not read it: it is sent
        again, over what is by then another connection. A server that is gone refuses that one."""
        headers = {"content-type": "application/json", "accept": accept}
        content = orjson.dumps(body)
        pauses = iter(AGAIN_SECONDS)
        while True:
            try:
                return await self._client().post(
                    self._url + path, data=content, headers=headers, allow_redirects=False, **options
                )
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                pause = None if isinstance(error, aiohttp.ClientConnectorError) else next(pauses, None)
                if pause is None:
                    raise
                log.warning("engine_connection_lost", path=path, error=_named(error))
                await asyncio.sleep(pause)

    def _body(self, request: EngineRequest) -> dict[str, Any]:
        able = self.capabilities
        body = {**request.body, "model": self._model, "stream": True, "max_tokens": request.max_tokens}
        body.pop("max_completion_tokens", None)
        body["stream_options"] = {"include_usage": True}
        if able.continuous_usage:
            body["stream_options"]["continuous_usage_stats"] = True
        if able.token_ids:
            body["return_token_ids"] = True
        if able.cache_salt:
            body["cache_salt"] = request.cache_salt
        if able.request_id:
            body["request_id"] = request.request_id
        return body

    async def _refuse(self, response: aiohttp.ClientResponse) -> None:
        try:
            text = (await response.read()).decode("utf-8", "replace")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise EngineGone(f"the engine broke off: {type(error).__name__}") from error
        message, param = _error_of(text)
        if response.status in _REFUSALS:
            raise EngineRefused(message, param=param)
        if response.status >= 500 or response.status in (408, 429):
            raise EngineGone(f"the engine answered {response.status}: {message}")
        raise EngineBroke(f"the engine answered {response.status}: {message}")  # a key, a route: not the client's

    async def _chunks(self, response: aiohttp.ClientResponse, asked: Mapping[str, Any]) -> AsyncGenerator[EngineChunk]:
        tally = _Tally(self._count_tokens if not self.capabilities.continuous_usage else None)
        choices = 0 if self.capabilities.done_event else asked.get("n") or 1
        async for data in self._events(response, whole=lambda: 0 < choices <= tally.ended()):
            try:
                body = orjson.loads(data)
                if "error" in body:
                    raise _failure_in_stream(
                        data, body["error"], begun=any(tally.completion.values()), field=_grammar_field(asked)
                    )
                yield EngineChunk(body=body, counts=tally.add(body))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise EngineBroke(f"the engine sent a chunk that cannot be read: {error}") from error

    async def _events(self, response: aiohttp.ClientResponse, *, whole: Callable[[], bool]) -> AsyncIterator[bytes]:
        """Data of each event before `[DONE]`, or before an end at which all is `whole`.

        Only waiting is timed, not the reader's own work.
        """
        reader = EventReader()
        patience = self._patience.first_byte
        done = False
        try:
            while True:
                async with asyncio.timeout(patience):
                    piece = await response.content.readany()
                if not piece:
                    break
                patience = self._patience.idle
                for data in reader.feed(piece):
                    done = done or data == b"[DONE]"
                    if not done:
                        yield data
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise EngineGone(f"the engine broke off: {type(error).__name__}") from error
        except EventTooLarge as error:
            raise EngineBroke(str(error)) from error
        if not done and not whole():
            raise EngineGone("the engine ended its stream before it was done")

    async def tokenize(self, *, endpoint: Endpoint, body: Mapping[str, Any]) -> list[int]:
        """Token ids of a request's prompt. Raises EngineGone, EngineRefused, EngineBroke."""
        field = "messages" if endpoint is Endpoint.CHAT else "prompt"
        tokens = await self._ask("/tokenize", {"model": self._model, field: body[field]}, "tokens")
        return [int(token) for token in tokens]

    async def detokenize(self, ids: Sequence[int]) -> str:
        """Their text, special tokens included. Raises EngineGone, EngineRefused, EngineBroke."""
        return str(await self._ask("/detokenize", {"model": self._model, "tokens": list(ids)}, "prompt"))

    async def _ask(self, path: str, body: dict[str, Any], field: str) -> Any:
        patience = aiohttp.ClientTimeout(total=ASK_SECONDS)
        try:
            async with await self._post(path, body, timeout=patience) as response:
                if response.status != OK:
                    await self._refuse(response)
                return orjson.loads(await response.read())[field]
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise EngineGone(f"the engine did not answer {path}: {type(error).__name__}") from error
        except (ValueError, TypeError, KeyError) as error:
            raise EngineBroke(f"the engine's answer to {path} cannot be read: {error}") from error

    async def health(self) -> Health:
        patience = aiohttp.ClientTimeout(total=PROBE_SECONDS)
        try:
            async with self._client().get(self._url + "/health", timeout=patience, allow_redirects=False) as response:
                return Health.DEAD if response.status >= 500 else Health.WELL
        except (aiohttp.ClientError, OSError, TimeoutError):
            return Health.SILENT

    async def facts(self) -> EngineFacts:
        """What the engine serves, from its own routes. Raises EngineGone."""
        models = orjson.loads(await self._get("/v1/models"))["data"]
        unlisted = models[0] if models else {"id": self._model}  # a server may load what it is asked for
        card = next((item for item in models if item["id"] == self._model), unlisted)
        cache: dict[str, str] = {}
        version = ""
        if self.capabilities.progress:
            cache = prometheus.read_labels(await self._get("/metrics"), "vllm:cache_config_info")
            version = str(orjson.loads(await self._get("/version"))["version"])
        return EngineFacts(
            served_model=str(card["id"]),
            context_tokens=int(card.get("max_model_len") or 0),
            block_tokens=_whole(cache.get("block_size")),
            blocks=_whole(cache.get("num_gpu_blocks")) or _whole(cache.get("num_cpu_blocks")),
            dtype=self._dtype,
            cache_dtype=cache.get("cache_dtype", ""),
            version=version,
            tools=self.capabilities.tools,
        )

    async def stats(self) -> EngineStats:
        """Numbers of this moment. Raises EngineGone. All zero for an engine without /metrics."""
        if not self.capabilities.progress:
            return EngineStats(running=0, waiting=0, kv_usage=0.0, progress=())
        sums = prometheus.read_sums(await self._get("/metrics"), frozenset(_PROGRESS))
        return EngineStats(
            running=int(sums.get("vllm:num_requests_running", 0)),
            waiting=int(sums.get("vllm:num_requests_waiting", 0)),
            kv_usage=sums.get("vllm:kv_cache_usage_perc", 0.0),
            progress=tuple(sums.get(name, 0.0) for name in _PROGRESS),
        )

    async def _get(self, path: str) -> str:
        patience = aiohttp.ClientTimeout(total=PROBE_SECONDS)
        try:
            async with self._client().get(
                self._url + path, timeout=patience, raise_for_status=True, allow_redirects=False
            ) as response:
                return await response.text()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise EngineGone(f"the engine did not answer {path}: {type(error).__name__}") from error

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()


@dataclass(slots=True)
class _Tally:
    """Counts of one request from the usage of its chunks: per choice while it runs, in total at the end."""

    count_tokens: Callable[[str], int] | None
    prompt: int = 0
    cached: int = 0
    completion: dict[int, int] = field(default_factory=dict)
    reasoning: dict[int, int] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    settled: dict[int, int] = field(default_factory=dict)  # tokens of the text before what is in `texts`
    finished: set[int] = field(default_factory=set)

    def ended(self) -> int:
        """Choices that have a finish reason; none while no usage has come, which is what they are billed by."""
        return len(self.finished) if self.prompt else 0

    def add(self, body: dict[str, Any]) -> TokenCounts:
        usage = body.get("usage")
        choices = body["choices"]
        self.finished.update(choice["index"] for choice in choices if choice.get("finish_reason"))
        if usage:
            self._usage(usage, [choice["index"] for choice in choices])
        elif self.count_tokens is not None:
            for choice in choices:
                self._estimate(choice)
        return TokenCounts(
            prompt=self.prompt,
            cached=min(self.cached, self.prompt),
            completion=sum(self.completion.values()),
            reasoning=min(sum(self.reasoning.values()), sum(self.completion.values())),
        )

    def _usage(self, usage: dict[str, Any], indexes: list[int]) -> None:
        """vLLM gives the count of the chunk's own choice; the last chunk has no choice and gives the total."""
        self.prompt = usage["prompt_tokens"]
        details = usage.get("prompt_tokens_details") or {}
        self.cached = details.get("cached_tokens") or self.cached
        thought = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
        if len(indexes) == 1:
            self.completion[indexes[0]] = usage.get("completion_tokens") or 0
            self.reasoning[indexes[0]] = thought or self.reasoning.get(indexes[0], 0)
        elif not indexes:
            self.completion = {0: usage.get("completion_tokens") or 0}
            self.reasoning = {0: thought or sum(self.reasoning.values())}

    def _estimate(self, choice: dict[str, Any]) -> None:
        """Only for an engine that counts at the end: the released text through the model's own tokenizer."""
        assert self.count_tokens is not None
        text = (choice.get("delta") or {}).get("content") or choice.get("text") or ""
        if text:
            index = choice["index"]
            self.texts[index] = self._settle(index, self.texts.get(index, "") + text)
            self.completion[index] = self.settled.get(index, 0) + self.count_tokens(self.texts[index])

    def _settle(self, index: int, text: str) -> str:
        """What is left to be counted anew with every chunk: words that are over are counted once.

        Tokenizers split before they merge, and all at a single space between words. What one of them puts before any
        text that it is given is in both counts of the difference, and so in neither.
        """
        assert self.count_tokens is not None
        if len(text) < SETTLE_CHARS:
            return text
        *_, cut = (0, *(found.start() for found in _BETWEEN_WORDS.finditer(text)))
        if cut:
            over = self.count_tokens(text) - self.count_tokens(text[cut:])
            self.settled[index] = self.settled.get(index, 0) + over
        return text[cut:]


def _named(error: Exception) -> str:
    number = getattr(error, "errno", None)
    return type(error).__name__ + (f" ({errno.errorcode.get(number, number)})" if number else "")


def _error_of(text: str) -> tuple[str, str]:
    """Message and `param` of an OpenAI error object, or the beginning of whatever came."""
    param = ""
    try:
        body = orjson.loads(text)
        error = body.get("error", body) if isinstance(body, dict) else body
        text = str(error.get("message", text)) if isinstance(error, dict) else str(error)
        param = str(error.get("param") or "") if isinstance(error, dict) else ""
    except ValueError:
        pass  # not JSON: the text itself is all there is
    return text[:ERROR_TEXT_MAX], param[:ERROR_TEXT_MAX]


def _grammar_field(body: Mapping[str, Any]) -> str:
    """The field that has the engine compile a grammar, if one does."""
    wanted = body.get("response_format")
    if isinstance(wanted, Mapping) and wanted.get("type") != "text":
        return "response_format"
    return "tools" if body.get("tools") and body.get("tool_choice") not in (None, "none", "auto") else ""


def _failure_in_stream(data: bytes, error: Any, *, begun: bool, field: str) -> EngineBroke | EngineRefused:
    """An error event. The engine opens its stream before it compiles a grammar, and so refuses inside of it.

    Before the first token a refusal says so by its code; where its compiler fails instead of refusing (500), the
    grammar is named as the suspect, and whoever knows that the engine lives on may say so.
    """
    text, param = _error_of(data.decode("utf-8", "replace"))
    code = error.get("code") if isinstance(error, dict) else None
    if not begun and code in _REFUSALS:
        return EngineRefused(text, param=param or field)
    return EngineBroke(text, param="" if begun else field)


def _whole(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0
