"""The arithmetic of bench `cancel`, and its refusal to count a client whose request did not run."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from infra.bench.cancel import Comparison, NotFreed, Plan, measures, run, too_slow
from infra.bench.load import Target

GAUGE = "vllm:num_requests_running"
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Engine:
    """Just enough of an engine: its gauge, and a stream that lasts until the client leaves."""

    def __init__(self, *, whole: bool = False) -> None:
        self.running = 0
        self.served = 0
        self.whole = whole

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET"):
            body = f"{GAUGE} {self.running}\n".encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        elif self.whole:
            writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\n{}")
        else:
            self.running, self.served = 1, self.served + 1
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n")
            while await reader.read(1024):
                pass
            self.running = 0
        await writer.drain()
        writer.close()


@asynccontextmanager
async def serving(engine: Engine) -> AsyncIterator[Target]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await engine.answer(reader, writer)
        except OSError:
            engine.running = 0  # the client dropped its connection

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield Target(name="engine", model="m", port=server.sockets[0].getsockname()[1])


class TestRun:
    async def test_times_each_side_s_clients_until_the_engine_is_free_but_not_the_first(self) -> None:
        engine, told = Engine(), []
        async with serving(engine) as target:
            found = await run(engine=target, weir=target, plan=Plan(requests=3, deadline=10), advance=told.append)
        assert (len(found.direct), len(found.weir), engine.served, sum(told)) == (3, 3, 8, Plan(requests=3).steps)
        assert all(0 < freed < 10_000 for freed in [*found.direct, *found.weir])

    async def test_does_not_count_a_client_whose_request_did_not_run(self) -> None:
        async with serving(Engine(whole=True)) as target:
            with pytest.raises(ExceptionGroup) as caught:
                await run(engine=target, weir=target, plan=Plan(requests=1, deadline=10), advance=lambda _: None)
        assert caught.group_contains(NotFreed, match="ended before its client left.*503")


class TestMeasures:
    def test_put_the_engine_s_own_beside_each_and_say_when_a_promise_is_broken(self) -> None:
        found = Comparison(Plan(), direct=[10.0, 20.0, 40.0], weir=[15.0, 30.0, 1_200.0])
        lines = measures(found, engine="vllm")
        assert [(line.metric, line.value, line.peer_value) for line in lines[::2]] == [
            ("freed_p50_ms", 30.0, 20.0),
            ("freed_max_ms", 1_200.0, 40.0),
        ]
        assert too_slow(lines) == "a client that had gone was worked for 1200 ms: over 1000"
        found.weir[-1] = 1_000.0
        assert too_slow(measures(found, engine="vllm")) == ""
