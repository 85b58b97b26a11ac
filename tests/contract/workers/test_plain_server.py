"""A server of another project behind the same adapter: `transformers serve` on the model that vLLM serves.

It sends usage with the last chunk only, ends a stream by closing it, has no salt and no metrics, and ignores `n`: what
the flags of `PLAIN` are for.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from time import monotonic, sleep
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from contracts.jobs import Endpoint
from tests.contract.workers.conftest import real_engine, request
from workers.engines.base import PLAIN, EngineChunk, EngineGone, Health
from workers.engines.http import HttpEngine

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]
START_SECONDS = 300
CHAT = {"messages": [{"role": "user", "content": "Tell me about rivers."}], "temperature": 0}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Its address, and the model's directory, by which it is called there."""
    found = real_engine()
    if found is None:
        pytest.skip("the engine environment or the converted model is not there; `make up` makes both")
    python, model = found
    home = tmp_path_factory.mktemp("transformers")
    (home / "hub").mkdir()  # without it the server cannot list its models
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [python.with_name("transformers"), "serve", model, "--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with (home / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--device", "cpu"], env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        _wait(f"http://127.0.0.1:{port}/health", process, home / "log")
        yield f"http://127.0.0.1:{port}/v1", model
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = monotonic() + START_SECONDS
    while process.poll() is None and monotonic() < until:
        try:
            with urlopen(url, timeout=5):
                return
        except (URLError, OSError):
            sleep(0.5)
    pytest.fail(log.read_text()[-2_000:])


@pytest.fixture(scope="module")
def tokenizer(server: tuple[str, Path]) -> Tokenizer:
    return Tokenizer.from_file(str(server[1] / "tokenizer.json"))


@pytest_asyncio.fixture
async def engine(server: tuple[str, Path], tokenizer: Tokenizer) -> AsyncIterator[HttpEngine]:
    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    adapter = HttpEngine(model=str(server[1]), capabilities=PLAIN, url=server[0], count_tokens=count)
    yield adapter
    await adapter.aclose()


async def read(engine: HttpEngine, body: dict[str, object], **options: object) -> list[EngineChunk]:
    async with engine.generate(request(body, **options)) as chunks:  # type: ignore[arg-type]
        return [chunk async for chunk in chunks]


class TestPlainServer:
    async def test_is_seen_to_be_there(self, engine: HttpEngine, server: tuple[str, Path]) -> None:
        assert await engine.health() is Health.WELL
        facts = await engine.facts()
        assert (facts.kv_tokens, facts.version) == (0, "")
        assert (await engine.stats()).progress == ()

    async def test_counts_grow_and_end_at_its_usage(self, engine: HttpEngine, tokenizer: Tokenizer) -> None:
        prompt = "The level of the river rises in spring."
        chunks = await read(engine, {"prompt": prompt, "temperature": 0}, endpoint=Endpoint.COMPLETIONS, max_tokens=8)
        seen = [chunk.counts.completion for chunk in chunks]
        assert seen == sorted(seen)
        assert chunks[-1].counts.prompt == len(tokenizer.encode(prompt).ids)
        assert chunks[-1].counts.completion == 8
        assert chunks[-1].body["choices"][0]["finish_reason"] == "length"

    async def test_answers_the_same_at_temperature_0(self, engine: HttpEngine) -> None:
        texts = []
        for _ in range(2):
            chunks = await read(engine, CHAT, max_tokens=8)
            texts.append("".join(chunk.body["choices"][0]["delta"].get("content") or "" for chunk in chunks))
        assert texts[0] == texts[1] != ""

    async def test_fails_where_it_gives_fewer_choices_than_asked(self, engine: HttpEngine) -> None:
        with pytest.raises(EngineGone, match="before it was done"):
            await read(engine, {**CHAT, "n": 2}, max_tokens=4)

    async def test_serves_on_after_a_reader_has_left(self, engine: HttpEngine) -> None:
        async with engine.generate(request(CHAT, max_tokens=8)) as chunks:
            await anext(chunks)
        assert (await read(engine, CHAT, max_tokens=4))[-1].counts.completion == 4
