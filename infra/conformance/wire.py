"""Sends bytes that no HTTP client would send, and reads what comes back. Called by `send.py`.

Invariants: every connection ends within its deadline; sending never waits for reading, so a server that answers early
is heard; at most `_READ_MAX` bytes are kept.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress

from infra.conformance.case import Reply, Wire
from infra.conformance.parse import Parsed, parse_answers
from infra.conformance.target import Target

_CHUNK = 65_536
_READ_MAX = 8 * 1024 * 1024
_QUIET_SECONDS = 1.0  # after the answers that were waited for, and when nothing more comes after fewer
_CLOSE_SECONDS = 2.0


async def exchange(wire: Wire, target: Target) -> Reply:
    """One connection, from its first byte to its end. Raises OSError when it cannot be opened."""
    context = ssl.create_default_context() if target.scheme == "https" else None
    async with asyncio.timeout(wire.deadline):
        # The limit is what asyncio reads ahead of a client that sips.
        opening = asyncio.open_connection(target.host, target.port, ssl=context, limit=wire.sip or _CHUNK)
        reader, writer = await opening
    collected = bytearray()
    try:
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(_send(wire, target, writer))
            try:
                async with asyncio.timeout(wire.deadline):
                    ended = await _receive(wire, reader, collected)
                late = False
            except TimeoutError:
                ended, late = False, True
            sending.cancel()
    finally:
        writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await writer.wait_closed()
    parsed = parse_answers(bytes(collected), ended=ended)
    return Reply(
        answers=parsed.answers,
        interim=parsed.interim,
        closed=ended,
        late=late and not parsed.answers,
        rest=parsed.rest,
        switched=parsed.switched,
    )


async def _send(wire: Wire, target: Target, writer: asyncio.StreamWriter) -> None:
    """The parts, then the drip until the server ends it. A server that closes early is an answer, not an error."""
    filled = [target.fill(part) for part in wire.parts]
    with suppress(OSError):
        for part in filled if wire.pause else [b"".join(filled)]:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(wire.pause)
        if wire.half_close:
            writer.write_eof()
        while wire.drip:
            writer.write(wire.drip)
            await writer.drain()
            await asyncio.sleep(wire.pause)


async def _receive(wire: Wire, reader: asyncio.StreamReader, collected: bytearray) -> bool:
    """Reads until the server closes (True), or its answers are whole and nothing more comes (False)."""
    while len(collected) < _READ_MAX:
        parsed = parse_answers(bytes(collected), ended=False)
        try:
            async with asyncio.timeout(_patience(wire, parsed)):
                data = await reader.read(wire.sip or _CHUNK)
        except TimeoutError:
            return False
        except OSError:  # reset: the server has closed, perhaps before it read all
            return True
        if not data:
            return True
        collected += data
        if wire.sip:
            await asyncio.sleep(wire.pause)
    return False


def _patience(wire: Wire, parsed: Parsed) -> float | None:
    """How long to wait for more: not for ever once answers have come and the next one does not begin."""
    whole = parsed.whole == len(parsed.answers)
    no_answer = bool(parsed.rest) and not b"HTTP/".startswith(parsed.rest[:5])
    ended = no_answer or (parsed.whole > 0 and whole and not parsed.rest)
    return _QUIET_SECONDS if ended and not (wire.drip and parsed.whole < wire.answers) else None
