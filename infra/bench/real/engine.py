"""A real vLLM for a bench: started with the worker's own command line and the bench's flags, ended with it.

Called by the benches of this package. Invariants: counts are the engine's own usage; an engine that does not start, and
an answer that does not come whole, fail the bench. Failures come in groups: the engine lives in a task of its own.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from controlplane.local.model import cached_directory
from infra.bench.load import Answer, Connection, Target, get_text, stream_body
from infra.setup.bootstrap import engine_environment
from stores.system import SystemClock
from workers.engines.base import FULL, EngineError, EngineFacts
from workers.engines.child import ChildPaths, EngineChild
from workers.engines.http import HttpEngine
from workers.engines.settings import EngineSettings
from workers.engines.vllm import vllm_command

ROOT = Path(__file__).resolve().parents[3]
INSIDE = ROOT / "infra" / "bench" / "inside"
START_SECONDS = 600.0
ANSWER_SECONDS = 180.0
LOG_CHARS = 1_500


class EngineAway(RuntimeError):
    """No engine to measure: its environment or the model is not made, or it did not start, or did not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RealEngine:
    """One engine that runs."""

    target: Target
    facts: EngineFacts
    model: Path

    async def ask(self, body: Mapping[str, Any]) -> Answer:
        """One whole answer. Raises EngineAway."""
        connection = Connection(self.target)
        try:
            answer = await stream_body(connection, body=body, deadline=ANSWER_SECONDS)
        finally:
            connection.close()
        if answer.failure:
            raise EngineAway(f"the engine `{self.target.name}` did not answer whole: {answer.failure}")
        return answer

    async def ask_together(self, bodies: Sequence[Mapping[str, Any]]) -> list[Answer]:
        """Asked at once; the answers in the order asked. Raises EngineAway in a group."""
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(self.ask(body)) for body in bodies]
        return [task.result() for task in asked]

    async def metrics(self) -> str:
        """The engine's own /metrics. Raises Refused, OSError, TimeoutError."""
        return (await get_text(self.target, "/metrics")).decode()

    def record_rows(self) -> list[tuple[str, str]]:
        """What runs, as it says itself."""
        facts = self.facts
        return [
            ("engine", f"vLLM {facts.version} on the processor, {self.model.name}"),
            ("context", f"{facts.context_tokens:,} tokens"),
            ("cache", f"{facts.blocks} blocks of {facts.block_tokens} tokens, {facts.cache_dtype}"),
        ]


@asynccontextmanager
async def running(
    name: str, *, flags: Sequence[str] = (), environment: Mapping[str, str] | None = None, **settings: Any
) -> AsyncIterator[RealEngine]:
    """An engine, ready and warm, by EngineSettings' fields and vLLM's flags. Raises EngineAway in a group."""
    python, model = _installed()
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as home:
        socket, log = Path(home) / "e.sock", Path(home) / "e.log"
        small = {"cpu_kv_cache_gib": 1, "max_model_len": 2_048, "start_seconds": START_SECONDS, "restarts_max": 1}
        engine = EngineSettings(python=str(python), **{**small, **settings})
        command = vllm_command(engine=engine, model_dir=model, served="m", uds=socket)
        adapter = HttpEngine(model="m", capabilities=FULL, socket=str(socket))
        host = EngineChild(
            adapter=adapter,
            command=replace(
                command,
                argv=(*command.argv, *flags),
                environment={**command.environment, "PYTHONPATH": str(INSIDE), **(environment or {})},
            ),
            paths=ChildPaths(socket=socket, pid_file=Path(home) / "e.json", log=log),
            settings=engine,
            clock=SystemClock(),
            working=lambda: False,
            on_change=lambda: None,
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                life = tasks.create_task(_live(host, log=log, name=name))
                await host.wait_ready()
                target = Target(name=name, model="m", host="localhost", unix_socket=socket)
                made = RealEngine(target=target, facts=await adapter.facts(), model=model)
                await made.ask(chat("Say hello.", max_tokens=4))  # what the first request has to make is not measured
                yield made
                life.cancel()
        finally:
            await adapter.aclose()


def chat(text: str, *, max_tokens: int, **fields: Any) -> dict[str, Any]:
    """A chat that is answered with so many tokens and the same each time, unless `fields` say otherwise."""
    message = {"role": "user", "content": text}
    return {"messages": [message], "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **fields}


def _installed() -> tuple[Path, Path]:
    """The engine's python and the converted model. Raises EngineAway."""
    named = os.environ.get("WEIR_ENGINE_PYTHON")
    made = engine_environment()
    python = Path(named) if named else made.python
    model = cached_directory(root=ROOT)
    if not (named or made.is_made()) or not (model / "model.safetensors").exists():
        raise EngineAway("vLLM or its model is not here: `make engine` makes both")
    return python, model


async def _live(host: EngineChild, *, log: Path, name: str) -> None:
    """The engine's life. Raises EngineAway with the end of its log where it ended by itself."""
    try:
        await host.run()
    except EngineError as error:
        raise EngineAway(f"the engine `{name}` did not start: {_end_of(log)}") from error


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-LOG_CHARS:] if log.exists() else "it wrote nothing"
