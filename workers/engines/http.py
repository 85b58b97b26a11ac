"""The one adapter: OpenAI's HTTP dialect over a Unix socket or a URL. Called through `base.EngineAdapter`.

Invariants: an abort is the closing of the response; a stream that ends without `[DONE]` is an error; usage of a choice
replaces what was counted for it before and is never added twice. Every wait has a bound (`Patience`).
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

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
)
from workers.engines.sse import EventReader, EventTooLarge

PROBE_SECONDS = 5.0
ERROR_TEXT_MAX = 500
_PROGRESS = (
    "vllm:iteration_tokens_total_count",
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
    "vllm:prefix_cache_queries_total",
    "vllm:kv_cache_usage_perc",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds to wait. The first byte may take a long prefill behind a full batch; later ones may not."""

    connect: float = 5.0
    first_byte: float = 600.0
    idle: float = 120.0


class HttpEngine:
    """One engine. `api_key` is for a server elsewhere; `count_tokens` stands in where no usage comes with chunks."""

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
    ) -> None:
        self.capabilities = capabilities
        self._model = model
        self._patience = patience or Patience()
        self._count_tokens = count_tokens
        self._client = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(
                uds=socket, limits=httpx.Limits(max_connections=connections_max, max_keepalive_connections=32)
            ),
            base_url=url.removesuffix("/v1").rstrip("/"),
            headers={"authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(self._patience.first_byte, connect=self._patience.connect, pool=PROBE_SECONDS),
            trust_env=False,
        )

    @asynccontextmanager
    async def generate(self, request: EngineRequest) -> AsyncIterator[AsyncIterator[EngineChunk]]:
        """Stream one request. Raises EngineGone, EngineRefused, EngineBroke."""
        content = orjson.dumps(self._body(request))
        path = f"/v1/{request.endpoint.value}"
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        sent = self._client.build_request("POST", path, content=content, headers=headers)
        try:
            response = await self._client.send(sent, stream=True)
        except httpx.HTTPError as error:
            raise EngineGone(f"the engine did not answer: {type(error).__name__}") from error
        try:
            if response.status_code != httpx.codes.OK:
                await self._refuse(response)
            async with aclosing(self._chunks(response)) as chunks:
                yield chunks
        finally:
            await response.aclose()

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

    async def _refuse(self, response: httpx.Response) -> None:
        try:
            text = (await response.aread()).decode("utf-8", "replace")
        except httpx.HTTPError as error:
            raise EngineGone(f"the engine broke off: {type(error).__name__}") from error
        message = _error_text(text)
        if response.status_code >= 500 or response.status_code in (408, 429):
            raise EngineGone(f"the engine answered {response.status_code}: {message}")
        raise EngineRefused(message)

    async def _chunks(self, response: httpx.Response) -> AsyncGenerator[EngineChunk]:
        tally = _Tally(self._count_tokens if not self.capabilities.continuous_usage else None)
        async for data in self._events(response):
            try:
                body = orjson.loads(data)
                if "error" in body:
                    raise EngineBroke(_error_text(data.decode("utf-8", "replace")))
                yield EngineChunk(body=body, counts=tally.add(body))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise EngineBroke(f"the engine sent a chunk that cannot be read: {error}") from error

    async def _events(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """Data of each event before `[DONE]`. Only waiting is timed, not the reader's own work."""
        reader = EventReader()
        patience = self._patience.first_byte
        pieces = response.aiter_raw()
        done = False
        try:
            while True:
                async with asyncio.timeout(patience):
                    piece = await anext(pieces, None)
                if piece is None:
                    break
                patience = self._patience.idle
                for data in reader.feed(piece):
                    done = done or data == b"[DONE]"
                    if not done:
                        yield data
        except (httpx.HTTPError, TimeoutError) as error:
            raise EngineGone(f"the engine broke off: {type(error).__name__}") from error
        except EventTooLarge as error:
            raise EngineBroke(str(error)) from error
        if not done:
            raise EngineGone("the engine ended its stream before it was done")

    async def health(self) -> bool:
        try:
            response = await self._client.get("/health", timeout=PROBE_SECONDS)
        except httpx.HTTPError:
            return False
        return response.status_code == httpx.codes.OK

    async def facts(self) -> EngineFacts:
        """What the engine serves, from its own routes. Raises EngineGone."""
        models = orjson.loads(await self._get("/v1/models"))["data"]
        card = next((item for item in models if item["id"] == self._model), models[0])
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
            cache_dtype=cache.get("cache_dtype", ""),
            version=version,
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
        try:
            response = await self._client.get(path, timeout=PROBE_SECONDS)
            response.raise_for_status()
        except httpx.HTTPError as error:
            raise EngineGone(f"the engine did not answer {path}: {type(error).__name__}") from error
        return response.text

    async def aclose(self) -> None:
        await self._client.aclose()


@dataclass(slots=True)
class _Tally:
    """Counts of one request from the usage of its chunks: per choice while it runs, in total at the end."""

    count_tokens: Callable[[str], int] | None
    prompt: int = 0
    cached: int = 0
    completion: dict[int, int] = field(default_factory=dict)
    reasoning: dict[int, int] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)

    def add(self, body: dict[str, Any]) -> TokenCounts:
        usage = body.get("usage")
        choices = body["choices"]
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
            self.texts[index] = self.texts.get(index, "") + text
            self.completion[index] = self.count_tokens(self.texts[index])


def _error_text(text: str) -> str:
    """The message of an OpenAI error object, or the beginning of whatever came."""
    try:
        body = orjson.loads(text)
        error = body.get("error", body) if isinstance(body, dict) else body
        text = str(error.get("message", text)) if isinstance(error, dict) else str(error)
    except ValueError:
        pass  # not JSON: the text itself is all there is
    return text[:ERROR_TEXT_MAX]


def _whole(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0
