"""What the transport below a connection does: stalled peers, and a loop that is late."""

import asyncio
import socket
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from gateway.edge.http import HttpProtocol, drop_when_stalled
from gateway.surface import limits

PATIENCE_SECONDS = 20.0
LIVE = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"


class TestStalledPeers:
    async def test_are_dropped_by_the_kernel_after_the_stated_time(self) -> None:
        taken: asyncio.Future[asyncio.BaseTransport] = asyncio.get_running_loop().create_future()

        class Taking(HttpProtocol):
            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
                super().connection_made(transport)
                taken.set_result(transport)

        config = uvicorn.Config(refuse_all, lifespan="off")
        config.load()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: Taking(config=config, server_state=ServerState(), app_state={}), "127.0.0.1", 0
        )
        async with server:
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            async with asyncio.timeout(PATIENCE_SECONDS):
                transport = await taken
            connection = transport.get_extra_info("socket")
            told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            transport.close()
            writer.close()
            await writer.wait_closed()
        assert told == limits.STALL_SECONDS * 1000

    def test_on_a_socket_file_have_no_such_clock(self) -> None:
        one, other = socket.socketpair()
        with one, other:
            drop_when_stalled(_Over(one), seconds=1.0)


async def refuse_all(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("no request is sent")


class TestBusyLoop:
    async def test_reads_a_head_that_came_in_time_before_it_is_called_late(self) -> None:
        """uvloop's may run the timer first, when it was stopped or busy past it."""
        opened: asyncio.Future[HttpProtocol] = asyncio.get_running_loop().create_future()

        class Opened(HttpProtocol):
            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
                super().connection_made(transport)
                opened.set_result(self)

        config = uvicorn.Config(answer, lifespan="off")
        config.load()
        server = await asyncio.get_running_loop().create_server(
            lambda: Opened(config=config, server_state=ServerState(), app_state={}), "127.0.0.1", 0
        )
        async with server, asyncio.timeout(PATIENCE_SECONDS):
            with socket.create_connection(server.sockets[0].getsockname(), PATIENCE_SECONDS) as client:
                protocol = await opened
                client.sendall(LIVE)  # there, and not read yet
                protocol._head_is_late()
                said = await asyncio.to_thread(client.recv, 100)
            protocol.transport.abort()
        assert said.startswith(b"HTTP/1.1 204 ")


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


class _Over(asyncio.BaseTransport):
    def __init__(self, connection: socket.socket) -> None:
        super().__init__({"socket": connection})
