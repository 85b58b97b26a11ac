"""A server of a few lines that is wrong on purpose, in one way at a time, for tests of the conformance suite."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from infra.conformance.target import Target, parse_base_url

Respond = Callable[[bytes], list[bytes] | None]  # the request's bytes -> what is written; None: not a word, for ever
KEY = "sk-conformance-0123456789"
MESSAGE = {"role": "assistant", "content": "Rhine, Elbe, Danube"}
CHAT = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1_700_000_000,
    "model": "a-model",
    "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "length"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9},
}


def answer(status: int, body: Any, *headers: str, kind: str = "application/json") -> bytes:
    """One HTTP answer."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Type: {kind}", f"Content-Length: {len(content)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def error(status: int, *headers: str, **changes: Any) -> bytes:
    """OpenAI's error object, with changes."""
    fields = {"message": "no", "type": "invalid_request_error", "param": None, "code": None, **changes}
    return answer(status, {"error": fields}, *headers)


def always(*written: bytes) -> Respond:
    return lambda _: list(written)


@asynccontextmanager
async def serving(respond: Respond) -> AsyncIterator[Target]:
    """The server on a free port, as a target. Each connection is answered once per request head that arrives."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 20):
                written = respond(data)
                if written is None:
                    await reader.read()
                    return
                writer.writelines(written)
                await writer.drain()
        except OSError:
            return
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=1 << 20)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield parse_base_url(f"http://127.0.0.1:{port}/v1", key=KEY, other_key=None, model="a-model")
