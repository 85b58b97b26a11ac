"""ASGI lifespan: the gateway's services run exactly as long as the server. Called by uvicorn through `asgi.py`."""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol

log = logging.getLogger("weir.gateway")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Runs(Protocol):
    """What lives as long as the server: `run` returns when `stopping` is set."""

    async def run(self, *, started: asyncio.Event, stopping: asyncio.Event) -> None: ...


@dataclass(frozen=True)
class Lifespan:
    """Runs `services` beside `inner`; any scope but "lifespan" goes straight through."""

    services: Runs
    inner: Callable[[Message, Receive, Send], Awaitable[None]]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self.inner(scope, receive, send)
            return
        await receive()  # lifespan.startup
        started, stopping = asyncio.Event(), asyncio.Event()
        try:
            async with asyncio.TaskGroup() as tasks:
                running = tasks.create_task(self.services.run(started=started, stopping=stopping))
                opened = tasks.create_task(started.wait())
                await asyncio.wait({running, opened}, return_when=asyncio.FIRST_COMPLETED)
                opened.cancel()
                if running.done():
                    await running  # raises what kept it from starting
                await send({"type": "lifespan.startup.complete"})
                await receive()  # lifespan.shutdown
                stopping.set()
        except ExceptionGroup as failures:
            log.exception("the gateway's services failed")
            if started.is_set():  # uvicorn would serve on without them: end, and be started anew
                signal.raise_signal(signal.SIGTERM)
            ended = "lifespan.shutdown.failed" if started.is_set() else "lifespan.startup.failed"
            await send({"type": ended, "message": str(failures.exceptions[0])})
        else:
            await send({"type": "lifespan.shutdown.complete"})
