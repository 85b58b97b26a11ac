"""Every engine behind the one adapter: simulated always, real vLLM where its environment and the model are."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from contracts.jobs import Endpoint
from controlplane.env import ROOT
from controlplane.local.model import cached_directory
from infra.setup.bootstrap import engine_environment
from stores.system import SystemClock
from workers.engines.base import FULL, EngineChunk, EngineRequest, EngineStats
from workers.engines.child import ChildPaths, EngineChild
from workers.engines.http import HttpEngine
from workers.engines.settings import EngineSettings
from workers.engines.simulated.toy import write_toy_model
from workers.engines.vllm import ChildCommand, simulated_command, vllm_command


def real_engine() -> tuple[Path, Path] | None:
    """Python of the engine environment of this lock and the converted model; None when one of them is not whole."""
    named, made = os.environ.get("WEIR_ENGINE_PYTHON"), engine_environment()
    python = Path(named) if named else made.python
    model = cached_directory(root=ROOT)
    is_whole = (named or made.is_made()) and (model / "model.safetensors").exists()
    return (python, model) if is_whole else None


@dataclass
class Engine:
    """An engine under test. `model` is its directory; `block_tokens` its cache's grain."""

    kind: str
    host: EngineChild
    model: Path

    async def all(self, body: dict[str, Any], **options: Any) -> list[EngineChunk]:
        async with self.host.adapter.generate(request(body, **options)) as chunks:
            return [chunk async for chunk in chunks]

    async def until(self, wanted: Any, *, seconds: float) -> EngineStats:
        async with asyncio.timeout(seconds):
            while True:
                stats = await self.host.adapter.stats()
                if wanted(stats):
                    return stats
                await asyncio.sleep(0.02)


def request(
    body: dict[str, Any], *, max_tokens: int = 24, salt: str = "acme", endpoint: Endpoint = Endpoint.CHAT
) -> EngineRequest:
    request.count += 1  # type: ignore[attr-defined]
    name = f"test-{request.count}"  # type: ignore[attr-defined]
    return EngineRequest(request_id=name, endpoint=endpoint, body=body, max_tokens=max_tokens, cache_salt=salt)


request.count = 0  # type: ignore[attr-defined]


@asynccontextmanager
async def running(kind: str, folder: Path, model: Path, command: ChildCommand) -> AsyncIterator[Engine]:
    uds = folder / "engine.sock"
    adapter = HttpEngine(model="m", capabilities=FULL, socket=str(uds))
    host = EngineChild(
        adapter=adapter,
        command=command,
        paths=ChildPaths(socket=uds, pid_file=folder / "engine.json", log=folder / "engine.log"),
        settings=EngineSettings(),
        clock=SystemClock(),
        working=lambda: False,
        on_change=lambda: None,
    )
    # Not a TaskGroup: a fixture's end runs in another task than its beginning.
    life = asyncio.ensure_future(host.run())
    try:
        ready = asyncio.ensure_future(host.wait_ready())
        await asyncio.wait({life, ready}, timeout=540, return_when=asyncio.FIRST_COMPLETED)
        assert ready.done(), (folder / "engine.log").read_text()[-2000:]
        yield Engine(kind=kind, host=host, model=model)
    finally:
        life.cancel()
        await asyncio.wait({life})
        await adapter.aclose()


@pytest_asyncio.fixture(
    loop_scope="session",
    scope="session",
    params=["simulated", pytest.param("vllm", marks=[pytest.mark.engine, pytest.mark.slow])],
)
async def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    """One engine for the whole suite; it runs in the session's event loop."""
    folder = tmp_path_factory.mktemp("engine")
    uds = folder / "engine.sock"
    if request.param == "simulated":
        model = write_toy_model(folder / "model")
        command = simulated_command(model_dir=model, served="m", uds=uds)
        slow = {"WEIR_SIM_DECODE_TOKENS_PER_SECOND": "400", "WEIR_SIM_BYTEWISE": "true"}
        command = ChildCommand(argv=command.argv, environment={**command.environment, **slow})
    else:
        found = real_engine()
        if found is None:
            pytest.skip("the engine environment or the converted model is not there; `make up` makes both")
        python, model = found
        settings = EngineSettings(python=str(python), cpu_kv_cache_gib=1, max_num_seqs=8)
        command = vllm_command(engine=settings, model_dir=model, served="m", uds=uds)
    async with running(request.param, folder, model, command) as engine:
        yield engine
