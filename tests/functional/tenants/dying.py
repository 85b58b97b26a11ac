"""One call of the ASGI callable whose client, or whose process, dies at the n-th await of it.

`Stepped` drives a coroutine and counts where it waits, so that every await of admission and answer is tried in turn
and none at random. Used by `test_deaths.py`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from enum import StrEnum
from typing import Any

import orjson

PATIENCE_SECONDS = 30.0


class Death(StrEnum):
    """What happens at the n-th await."""

    GONE = "gone"  # the client closes its connection: receive says so, sends go nowhere
    CANCELLED = "cancelled"  # the server gives the call up, before what it waits for has come
    LATE = "late"  # the same, just after that has come and before the call has heard of it
    KILLED = "killed"  # the process stops there for ever


class Stepped:
    """Awaits a coroutine and tells `on_step` of each of its awaits: its number, and what is waited for.

    `on_step` may return a future to wait for in place of what the coroutine waits for.
    """

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], on_step: Callable[[int, Any], "asyncio.Future[Any] | None"]
    ) -> None:
        self._coroutine = coroutine
        self._on_step = on_step
        self.steps = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        resume: Callable[[Any], Any] = self._coroutine.send
        with_what: Any = None
        while True:
            try:
                waited = resume(with_what)
            except StopIteration as end:
                return end.value
            self.steps += 1
            instead = self._on_step(self.steps, waited)
            try:
                with_what = yield waited if instead is None else from_future(instead)
                resume = self._coroutine.send
            except BaseException as error:  # noqa: BLE001 - everything goes to the coroutine, as a task would do it
                resume, with_what = self._coroutine.throw, error


def from_future(future: "asyncio.Future[Any]") -> "asyncio.Future[Any]":
    """As a task wants a future to be handed to it."""
    future._asyncio_future_blocking = True
    return future


class Call:
    """One POST. `status` is None when no answer began; `body` is what was sent of it."""

    def __init__(self, path: str, document: dict[str, Any], headers: dict[str, str]) -> None:
        self.status: int | None = None
        self.body = b""
        self.steps = 0
        self.reached = False
        self._content = orjson.dumps(document)
        self._gone = asyncio.Event()
        self._read = False
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        self.scope = {
            "type": "http", "method": "POST", "path": path, "query_string": b"", "client": ("127.0.0.1", 1),
            "headers": [(b"content-type", b"application/json"), *raw],
        }  # fmt: skip

    async def receive(self) -> dict[str, Any]:
        if not self._read and not self._gone.is_set():
            self._read = True
            return {"type": "http.request", "body": self._content, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await asyncio.sleep(0)  # a server may wait here; so a client may die here
        if self._gone.is_set():
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.body += message["body"]

    async def run(self, app: Callable[..., Coroutine[Any, Any, None]], *, death: Death | None, at: int) -> None:
        """Until the call ends, or until it is dead and nothing of it moves any more (`KILLED`: it hangs; `bury` it)."""
        self._dead = asyncio.get_running_loop().create_future()
        self._killed = asyncio.Event()

        def on_step(step: int, waited: Any) -> "asyncio.Future[Any] | None":
            self.steps = step
            if step != at or death is None:
                return None
            self.reached = True
            task = asyncio.current_task()
            assert task is not None
            if death is Death.GONE:
                self._gone.set()
            elif death is Death.CANCELLED or not isinstance(waited, asyncio.Future):
                if death is not Death.KILLED:
                    task.cancel()
            elif death is Death.LATE:
                waited.add_done_callback(lambda _: task.cancel())
            if death is Death.KILLED:
                self._killed.set()
                return self._dead
            return None

        async def whole() -> None:
            await Stepped(app(self.scope, self.receive, self.send), on_step)

        self._task = asyncio.ensure_future(whole())
        killed = asyncio.ensure_future(self._killed.wait())
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.wait({self._task, killed}, return_when=asyncio.FIRST_COMPLETED)
        killed.cancel()
        if self._task.done() and not self._task.cancelled():
            self._task.result()

    async def bury(self) -> None:
        """Ends what hangs, once nothing is looked at any more."""
        self._task.cancel()
        await asyncio.wait({self._task}, timeout=PATIENCE_SECONDS)
