"""PostgreSQL, asked by the event loop: what blocks crosses to a thread here, once, with a deadline.

Called by the gateway's ports beside this file. Invariant: no caller waits longer than DATABASE_SECONDS.
"""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from asgiref.sync import sync_to_async
from django.db import DatabaseError, close_old_connections

from contracts.errors import Unavailable

DATABASE_SECONDS = 3.0

P = ParamSpec("P")
T = TypeVar("T")


async def from_database(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`call` in a thread, within three seconds. Raises Unavailable when PostgreSQL does not answer."""

    def ask() -> T:
        close_old_connections()
        return call(*args, **kwargs)

    try:
        async with asyncio.timeout(DATABASE_SECONDS):
            return await sync_to_async(ask, thread_sensitive=False)()
    except (DatabaseError, TimeoutError) as error:
        raise Unavailable("The database does not answer right now.", retry_after_ms=2_000) from error
