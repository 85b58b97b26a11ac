"""The simulated engine's HTTP surface: a plain ASGI application with vLLM's routes, errors and metrics.

Invariant: a client that goes away is noticed at once and its sequences give their blocks back.
Header `x-weir-fault: die@5` (or `hang@5`, `error@5`, `refuse@0`) breaks one request, for tests; SIGUSR1 leaves the
server without its engine.
"""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import orjson

from contracts.clock import Clock
from workers.engines.simulated.dialect import BadRequest, Call, read_call, read_text, read_tokens
from workers.engines.simulated.engine import CoreLost, Emission, Fault, Generation, GenerationFailed, SimulatedEngine
from workers.engines.simulated.model import LocalModel

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

ENGINE_VERSION = "simulated-1"
BODY_MAX = 32 * 1024 * 1024


class SimulatedApp:
    """ASGI application; the engine runs inside its lifespan."""

    def __init__(self, *, engine: SimulatedEngine, model: LocalModel, served: str, clock: Clock) -> None:
        self.engine = engine
        self.model = model
        self.served = served
        self.clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            raise ValueError(f"{scope['type']} is not served")
        routes: dict[tuple[str, str], Callable[[Scope, Receive, Send], Awaitable[None]]] = {
            ("GET", "/health"): self._health,
            ("GET", "/version"): self._version,
            ("GET", "/v1/models"): self._models,
            ("GET", "/metrics"): self._metrics,
            ("POST", "/v1/chat/completions"): self._generate,
            ("POST", "/v1/completions"): self._generate,
            ("POST", "/tokenize"): self._tokens,
            ("POST", "/detokenize"): self._tokens,
        }
        handler = routes.get((scope["method"], scope["path"]))
        if handler is None:
            await _json(send, 404, _error("Not Found", 404))
            return
        await handler(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self.engine.lose_core)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(self.engine.run())
            await asyncio.sleep(self.engine.settings.startup_seconds)
            await send({"type": "lifespan.startup.complete"})
            await receive()
            running.cancel()
        await send({"type": "lifespan.shutdown.complete"})

    async def _health(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await _answer(send, 503 if self.engine.is_lost else 200, b"", b"text/plain")

    async def _version(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await _json(send, 200, {"version": ENGINE_VERSION})

    async def _models(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        card = {"id": self.served, "object": "model", "owned_by": "weir", "max_model_len": self.model.context_tokens}
        await _json(send, 200, {"object": "list", "data": [card]})

    async def _metrics(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await _answer(send, 200, self.metrics().encode(), b"text/plain; version=0.0.4")

    def metrics(self) -> str:
        """Prometheus text with the names that vLLM uses."""
        scheduler, settings = self.engine.scheduler, self.engine.settings
        totals = scheduler.totals
        label = f'{{engine="0",model_name="{self.served}"}}'
        values: dict[str, float] = {
            "num_requests_running": scheduler.running,
            "num_requests_waiting": scheduler.waiting,
            "kv_cache_usage_perc": scheduler.cache.used_blocks / scheduler.cache.blocks,
            "prompt_tokens_total": totals.prompt_tokens,
            "generation_tokens_total": totals.generation_tokens,
            "prefix_cache_queries_total": totals.queried_tokens,
            "prefix_cache_hits_total": totals.hit_tokens,
            "num_preemptions_total": totals.preemptions,
            "iteration_tokens_total_count": totals.steps,
        }
        info = f'block_size="{settings.block_tokens}",cache_dtype="auto",num_gpu_blocks="{settings.blocks}"'
        lines = [f"vllm:{name}{label} {value}" for name, value in values.items()]
        return "\n".join([*lines, f"vllm:cache_config_info{{{info}}} 1.0", ""])

    async def _tokens(self, scope: Scope, receive: Receive, send: Send) -> None:
        read = read_text if scope["path"] == "/detokenize" else read_tokens
        try:
            body = json.loads(await _body(receive))
            if not isinstance(body, dict):
                raise BadRequest("the body is not an object")
            await _json(send, 200, read(body=body, model=self.model))
        except ValueError as error:
            await _json(send, 400, _error(str(error), 400, param=getattr(error, "param", None)))

    async def _generate(self, scope: Scope, receive: Receive, send: Send) -> None:
        chat = scope["path"].endswith("/chat/completions")
        fault = _fault(scope)
        try:
            body = json.loads(await _body(receive))
            if not isinstance(body, dict) or (fault is not None and fault.kind == "refuse"):
                raise BadRequest("the body is not an object" if fault is None else "refused by a test")
            call = read_call(
                body=body,
                chat=chat,
                model=self.model,
                served=self.served,
                created=self.clock.now_ms() // 1000,
                bytewise=self.engine.settings.bytewise,
            )
            generation = Generation(sequences=call.sequences(), fault=fault)
            self.engine.submit(generation)
        except ValueError as error:
            await _json(send, 400, _error(str(error), 400, param=getattr(error, "param", None)))
            return
        except CoreLost as error:
            await _json(send, 500, _error(str(error), 500))
            return
        try:
            await self._respond(call, generation, receive, send)
        finally:
            self.engine.abort(generation)

    async def _respond(self, call: Call, generation: Generation, receive: Receive, send: Send) -> None:
        """Write the answer until it is done or the client is gone, whichever is first."""
        async with asyncio.TaskGroup() as group:
            writer = group.create_task((_stream if call.stream else _whole)(call, generation, send))
            watcher = group.create_task(_wait_for_disconnect(receive))
            await asyncio.wait({writer, watcher}, return_when=asyncio.FIRST_COMPLETED)
            writer.cancel()
            watcher.cancel()


async def _stream(call: Call, generation: Generation, send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    completion = 0
    try:
        async with _emissions(generation) as emissions:
            if call.chat:
                for index in range(len(call.answers)):
                    await _event(send, call.role_chunk(index))
            async for emission in emissions:
                completion += 1
                await _event(send, call.token_chunk(index=emission.choice, position=emission.position))
        if call.include_usage:
            await _event(send, call.usage_chunk(completion=completion, cached=generation.cached_tokens))
    except GenerationFailed as error:
        await _event(send, _error(str(error), 500))
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def _whole(call: Call, generation: Generation, send: Send) -> None:
    try:
        async with _emissions(generation) as emissions:
            async for _emission in emissions:
                pass
    except GenerationFailed as error:
        await _json(send, 500, _error(str(error), 500))
        return
    await _json(send, 200, call.whole(generation.cached_tokens))


@asynccontextmanager
async def _emissions(generation: Generation) -> AsyncIterator[AsyncIterator[Emission]]:
    """Every emission of every choice, in order; nothing is returned before the first one exists."""
    first = await generation.queue.get()

    async def rest() -> AsyncIterator[Emission]:
        open_choices = len(generation.sequences)
        emission = first
        while True:
            if emission is None:
                raise GenerationFailed("the engine failed on this request")
            yield emission
            open_choices -= emission.finished
            if open_choices == 0:
                return
            emission = await generation.queue.get()

    yield rest()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BadRequest("the client went away")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > BODY_MAX:
            raise BadRequest("the body is too large")
        if not message.get("more_body"):
            return b"".join(parts)


def _fault(scope: Scope) -> Fault | None:
    for name, value in scope["headers"]:
        if name == b"x-weir-fault":
            kind, _, after = value.decode().partition("@")
            return Fault(kind=kind, after=int(after or 0))
    return None


def _error(message: str, status: int, *, param: str | None = None) -> dict[str, Any]:
    kind = "BadRequestError" if status == 400 else "InternalServerError"
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


async def _event(send: Send, document: dict[str, Any]) -> None:
    body = b"data: " + orjson.dumps(document) + b"\n\n"
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _json(send: Send, status: int, document: dict[str, Any]) -> None:
    await _answer(send, status, orjson.dumps(document), b"application/json")


async def _answer(send: Send, status: int, body: bytes, kind: bytes) -> None:
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
