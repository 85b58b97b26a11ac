"""Answers of an engine that are no stream: whose fault each is decides who is told what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import orjson
import pytest

from contracts.tokens import TokenCounts
from tests.contract.workers.conftest import request
from workers.engines.base import FULL, PLAIN, EngineBroke, EngineChunk, EngineGone, EngineRefused
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


class TestErrorsInAStream:
    """The engine opens its stream before it compiles a grammar, and so refuses inside of it."""

    SCHEMA = {"prompt": "x", "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}}

    async def read(self, engine: HttpEngine, body: dict[str, object]) -> None:
        async with engine.generate(request(body)) as chunks:
            async for _ in chunks:
                pass

    def stream(self, *events: object) -> bytes:
        return b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events) + b"data: [DONE]\n\n"

    def chunk(self, tokens: int) -> dict[str, object]:
        choice = {"index": 0, "text": "a", "finish_reason": None}
        return {"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": tokens}}

    def error(self, code: int) -> dict[str, object]:
        return {"error": {"message": "Grammar error: Unknown format", "type": "X", "param": None, "code": code}}

    async def test_with_the_code_of_a_refusal_are_one(self, answering: Serve) -> None:
        async with answering(200, self.stream(self.error(400))) as engine:
            with pytest.raises(EngineRefused, match="Unknown format") as refused:
                await self.read(engine, self.SCHEMA)
        assert refused.value.param == "response_format"

    async def test_before_the_first_token_suspect_the_grammar(self, answering: Serve) -> None:
        async with answering(200, self.stream(self.chunk(0), self.error(500))) as engine:
            with pytest.raises(EngineBroke) as broke:
                await self.read(engine, self.SCHEMA)
        assert broke.value.param == "response_format"

    @pytest.mark.parametrize(
        ("code", "tokens", "body"), [(500, 0, {"prompt": "x"}), (500, 1, SCHEMA), (400, 1, SCHEMA)]
    )
    async def test_otherwise_are_the_engine_s_own(
        self, answering: Serve, code: int, tokens: int, body: dict[str, object]
    ) -> None:
        async with answering(200, self.stream(self.chunk(tokens), self.error(code))) as engine:
            with pytest.raises(EngineBroke) as broke:
                await self.read(engine, body)
        assert broke.value.param == ""


class TestEnd:
    """Some servers end a stream by closing it; a stream that was cut must not pass for theirs."""

    LAST = {"choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]}
    USAGE = {"prompt_tokens": 3, "completion_tokens": 1}

    async def read(self, engine: HttpEngine, **fields: object) -> list[EngineChunk]:
        async with engine.generate(request({"prompt": "x", **fields})) as chunks:
            return [chunk async for chunk in chunks]

    def sent(self, *events: object) -> bytes:
        return b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events)

    @pytest.mark.parametrize("events", [[{**LAST, "usage": USAGE}], [LAST, {"choices": [], "usage": USAGE}]])
    async def test_without_done_is_one_where_the_engine_has_none(self, answering: Serve, events: list[object]) -> None:
        async with answering(200, self.sent(*events)) as engine:
            engine.capabilities = PLAIN
            assert (await self.read(engine))[-1].counts == TokenCounts(prompt=3, completion=1)

    @pytest.mark.parametrize(
        ("events", "fields"),
        [
            ([], {}),
            ([LAST], {}),  # its usage is still to come
            ([{"choices": [{"index": 0, "text": "a", "finish_reason": None}], "usage": USAGE}], {}),
            ([{**LAST, "usage": USAGE}], {"n": 2}),
        ],
    )
    async def test_is_none_while_something_is_missing(
        self, answering: Serve, events: list[object], fields: dict[str, object]
    ) -> None:
        async with answering(200, self.sent(*events)) as engine:
            engine.capabilities = PLAIN
            with pytest.raises(EngineGone, match="before it was done"):
                await self.read(engine, **fields)

    async def test_needs_done_where_the_engine_sends_it(self, answering: Serve) -> None:
        async with answering(200, self.sent({**self.LAST, "usage": self.USAGE})) as engine:
            with pytest.raises(EngineGone, match="before it was done"):
                await self.read(engine)


class TestKeptConnection:
    """Servers close them when they have been idle, and may do so just as a request is sent."""

    ANSWER = b'data: {"choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'

    @asynccontextmanager
    async def closing(self, path: str, *, good: int) -> AsyncIterator[tuple[HttpEngine, list[int]]]:
        """An engine that answers `good` connections once each, and closes every connection at its next request."""
        answered: list[int] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if len(answered) < good:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(int(each[15:]) for each in head.lower().split(b"\r\n") if each[:15] == b"content-length:")
                await reader.readexactly(length)
                answered.append(length)
                writer.write(b"HTTP/1.1 200 X\r\ncontent-length: %d\r\n\r\n" % len(self.ANSWER) + self.ANSWER)
            await reader.read(1)  # the rest of the request stays unread, and so its client is told of a reset
            writer.close()

        async with await asyncio.start_unix_server(serve, path):
            engine = HttpEngine(model="m", capabilities=FULL, socket=path)
            try:
                yield engine, answered
            finally:
                await engine.aclose()

    async def read(self, engine: HttpEngine) -> list[str]:
        async with engine.generate(request({"prompt": "x"})) as chunks:
            return [chunk.body["choices"][0]["text"] async for chunk in chunks]

    async def test_that_is_lost_under_a_request_has_it_sent_over_another(self, tmp_path: Path) -> None:
        async with self.closing(str(tmp_path / "engine.sock"), good=3) as (engine, answered):
            assert [await self.read(engine) for _ in range(3)] == [["a"]] * 3
        assert len(answered) == 3

    async def test_is_not_tried_for_ever(self, tmp_path: Path) -> None:
        async with self.closing(str(tmp_path / "engine.sock"), good=1) as (engine, _):
            await self.read(engine)
            with pytest.raises(EngineGone, match=r"ClientOSError \(ECONNRESET\)|ServerDisconnectedError"):
                await self.read(engine)
