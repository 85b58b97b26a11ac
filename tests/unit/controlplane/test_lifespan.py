"""The server's lifespan: services run as long as the server does, and a failed start is told."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

from controlplane.lifespan import Lifespan


class Services:
    """Starts at once, or fails, and remembers that it was stopped."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.stopped = False

    async def run(self, *, started: asyncio.Event, stopping: asyncio.Event) -> None:
        if self.failure:
            raise self.failure
        started.set()
        await stopping.wait()
        self.stopped = True


class Server:
    """Plays uvicorn: says startup, then shutdown, and keeps what it is told."""

    def __init__(self) -> None:
        self.says = ["lifespan.startup", "lifespan.shutdown"]
        self.told: list[str] = []

    async def receive(self) -> MutableMapping[str, Any]:
        return {"type": self.says.pop(0)}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        self.told.append(message["type"])


async def unused(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("a lifespan never reaches the application")


class TestLifespan:
    async def test_runs_the_services_from_startup_to_shutdown(self) -> None:
        services, server = Services(), Server()
        await Lifespan(services=services, inner=unused)({"type": "lifespan"}, server.receive, server.send)
        assert server.told == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
        assert services.stopped

    async def test_tells_a_start_that_failed(self) -> None:
        server = Server()
        lifespan = Lifespan(services=Services(failure=RuntimeError("no store")), inner=unused)
        await lifespan({"type": "lifespan"}, server.receive, server.send)
        assert server.told == ["lifespan.startup.failed"]

    async def test_passes_every_other_scope_on(self) -> None:
        seen: list[str] = []

        async def inner(scope: Any, receive: Any, send: Any) -> None:
            seen.append(scope["type"])

        server = Server()
        await Lifespan(services=Services(), inner=inner)({"type": "http"}, server.receive, server.send)
        assert seen == ["http"]
