"""Answers of an engine that are no stream: whose fault each is decides who is told what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import orjson
import pytest

from tests.contract.workers.conftest import request
from workers.engines.base import FULL, EngineBroke, EngineGone, EngineRefused
from workers.engines.http import HttpEngine

Serve = Callable[[int, object], AbstractAsyncContextManager[HttpEngine]]


@pytest.fixture
def answering(tmp_path: Path) -> Serve:
    """An engine on a socket that answers everything with one status and body."""

    @asynccontextmanager
    async def serve(status: int, body: object) -> AsyncIterator[HttpEngine]:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(length)
            content = body if isinstance(body, bytes) else orjson.dumps(body)
            writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (status, len(content)))
            writer.write(content)
            await writer.drain()
            writer.close()

        path = str(tmp_path / "engine.sock")
        async with await asyncio.start_unix_server(answer, path):
            engine = HttpEngine(model="m", capabilities=FULL, socket=path)
            try:
                yield engine
            finally:
                await engine.aclose()

    return serve


async def ask(engine: HttpEngine) -> None:
    async with engine.generate(request({"prompt": "x"})):
        pass


class TestErrors:
    @pytest.mark.parametrize("status", [400, 413, 422])
    async def test_of_the_request_carry_text_and_field(self, answering: Serve, status: int) -> None:
        body = {"error": {"message": "no", "type": "BadRequestError", "param": "temperature", "code": 400}}
        async with answering(status, body) as engine:
            with pytest.raises(EngineRefused, match=r"^no$") as refused:
                await ask(engine)
        assert refused.value.param == "temperature"

    async def test_that_are_no_json_are_taken_as_text(self, answering: Serve) -> None:
        async with answering(400, b"<html>" + b"x" * 10_000) as engine:
            with pytest.raises(EngineRefused) as refused:
                await ask(engine)
        assert len(str(refused.value)) == 500
        assert refused.value.param == ""

    @pytest.mark.parametrize("status", [401, 403, 404, 405])
    async def test_of_the_operator_are_not_the_client_s(self, answering: Serve, status: int) -> None:
        async with answering(status, {"error": {"message": "bad key"}}) as engine:
            with pytest.raises(EngineBroke, match=f"{status}: bad key"):
                await ask(engine)

    @pytest.mark.parametrize("status", [408, 429, 500, 503])
    async def test_of_the_engine_are_asked_about(self, answering: Serve, status: int) -> None:
        async with answering(status, {"detail": "busy"}) as engine:
            with pytest.raises(EngineGone):
                await ask(engine)
