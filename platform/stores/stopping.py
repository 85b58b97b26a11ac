"""How a loop waits between its rounds: not past the moment at which its process is told to stop."""

import asyncio


async def stopped_within(stop: asyncio.Event, *, seconds: float) -> bool:
    """Waits for `stop`, no longer than `seconds`. Whether it came."""
    try:
        async with asyncio.timeout(seconds):
            return await stop.wait()
    except TimeoutError:
        return False
