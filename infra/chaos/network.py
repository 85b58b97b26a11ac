"""The network between the platform and Valkey: a TCP proxy on the loopback whose connections can be broken.

Called by `installation`, broken by `faults`. Invariant: what is passed on is passed on unchanged and in order; a fault
only ends a connection, or keeps its bytes back until it is ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

_PIECE = 1 << 16
_DIAL_SECONDS = 5.0


class Wire:
    """One connection through the proxy, both ways."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.writers = (client, server)
        self.muted = {"up": False, "down": False}

    def end(self) -> None:
        """Resets both sides at once: no FIN, no last bytes."""
        for writer in self.writers:
            writer.transport.abort()


class Proxy:
    """Listens on `port` of 127.0.0.1 and passes on to `upstream`."""

    def __init__(self, *, port: int, upstream: int) -> None:
        self._port = port
        self._upstream = upstream
        self._wires: set[Wire] = set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Listens inside the block."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        try:
            yield
        finally:
            server.close()
            for wire in list(self._wires):
                wire.end()

    def cut(self, *, share: float = 1.0) -> int:
        """Resets this share of all connections, the oldest first; how many it were."""
        wires = list(self._wires)[: max(1, round(len(self._wires) * share))]
        for wire in wires:
            wire.end()
        return len(wires)

    async def lose_replies(self, *, seconds: float) -> int:
        """Requests arrive, their replies do not: what was asked for has been done, and the caller is cut off."""
        return await self._mute({"down"}, seconds)

    async def half_open(self, *, seconds: float) -> int:
        """Nothing passes in either direction, and neither side is told, until the connections are reset."""
        return await self._mute({"up", "down"}, seconds)

    async def _mute(self, ways: set[str], seconds: float) -> int:
        wires = list(self._wires)
        for wire in wires:
            wire.muted.update(dict.fromkeys(ways, True))
        await asyncio.sleep(seconds)
        for wire in wires:
            wire.end()
        return len(wires)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_DIAL_SECONDS):
                up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        except (OSError, TimeoutError):
            writer.transport.abort()
            return
        wire = Wire(writer, up_writer)
        self._wires.add(wire)
        try:
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._pump(wire, reader, up_writer, "up"))
                ways.create_task(self._pump(wire, up_reader, writer, "down"))
        finally:
            self._wires.discard(wire)
            wire.end()

    async def _pump(self, wire: Wire, source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: str) -> None:
        """Until either side ends; the other one is then reset too."""
        with suppress(OSError):
            while piece := await source.read(_PIECE):
                if wire.muted[way]:
                    continue
                sink.write(piece)
                await sink.drain()
        wire.end()
