"""The events of one connection to its client: numbered, one at a time, each within a deadline. For `consumer.py`.

Invariants: every event has `event_id` and a `sequence_number` without gaps; after the connection is closed nothing is
sent; a client that does not take its events is given up.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import orjson

from contracts.errors import SlowReader, WeirError
from gateway.stream.relay import ClientLost
from gateway.surface.errors import error_object, rate_limits
from tenants.limits.holds import RateLimited

EVENT_ID_MAX = 512  # as much as OpenAI's clients may send


class Farewell(Exception):
    """The end of a connection, with its close code."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Events:
    """`send` takes one event's text. `closed` is set by whoever learns first that the connection has ended."""

    def __init__(self, *, send: Callable[[str], Awaitable[None]], connection: str, stall_seconds: float) -> None:
        self.closed = False
        self._send = send
        self._connection = connection
        self._stall_seconds = stall_seconds
        self._sequence = 0
        self._sending = asyncio.Lock()

    async def emit(self, kind: str, **fields: Any) -> None:
        """One event. Raises SlowReader, ClientLost."""
        async with self._sending:
            if self.closed:
                return
            self._sequence += 1
            event: dict[str, Any] = {"type": kind, "event_id": f"event_{self._connection}_{self._sequence}"}
            event |= {"sequence_number": self._sequence, **fields}
            try:
                async with asyncio.timeout(self._stall_seconds):
                    await self._send(orjson.dumps(event).decode())
            except TimeoutError as error:
                self.closed = True
                raise SlowReader("the client does not read its events") from error
            except (OSError, RuntimeError) as error:
                # RuntimeError: how ASGI servers refuse to send after a close, also after one that the client began.
                if (
                    isinstance(error, RuntimeError)
                    and not self.closed
                    and "after sending 'websocket.close'" not in str(error)
                ):
                    raise
                self.closed = True
                raise ClientLost from error

    async def error(self, error: WeirError, *, event_id: Any = None) -> None:
        """An `error` event, where somebody is left to read it. `event_id`: what the client called its event."""
        with suppress(ClientLost, SlowReader):
            fields = error_object(error)
            if isinstance(event_id, str):
                fields["error"]["event_id"] = event_id[:EVENT_ID_MAX]
            if isinstance(error, RateLimited):
                fields["rate_limits"] = rate_limits(requests=error.requests, tokens=error.tokens)
            await self.emit("error", **fields)
