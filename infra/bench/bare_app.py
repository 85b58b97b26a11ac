"""A bare ASGI application that speaks as much of OpenAI's API as a bench needs, and answers at once.

Run by uvicorn in a process of its own: the peer of bench `stream` (what an answer costs when nothing but a web server
sends it), and the upstream of bench `gateway`. One `send` a token, as a server has them. `seed` of a request is the
pace in tokens a second; without one a token follows the other as soon as the other streams had their turn.
Environment: WEIR_BENCH_MODEL, the model's name; WEIR_BENCH_EVENTS, a folder with recorded answers by number of tokens
(`N.events`), sent instead of made-up ones.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PROMPT_TOKENS = 40
SPLIT = b"\n\n"
_HEAD = {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1}
_SSE = [(b"content-type", b"text/event-stream; charset=utf-8")]


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """ASGI. Raises KeyError for a body that no bench sends."""
    if scope["type"] == "lifespan":
        await _lifespan(receive, send)
    elif scope["type"] == "http" and scope["path"].endswith("/chat/completions"):
        body = json.loads(await _body(receive))
        await (_stream if body.get("stream") else _whole)(body, send)
    elif scope["type"] == "http":
        card = {"id": _model(), "object": "model", "owned_by": "bench", "max_model_len": 8192}
        await _json(send, {"object": "list", "data": [card]})


async def _lifespan(receive: Receive, send: Send) -> None:
    for word in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{word}.complete"})


async def _body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _stream(body: dict[str, Any], send: Send) -> None:
    *events, last = events_of(int(body["max_tokens"]))
    pace = body.get("seed") or 0
    began = time.monotonic()
    await send({"type": "http.response.start", "status": 200, "headers": _SSE})
    for number, event in enumerate(events, start=1):
        await asyncio.sleep(began + number / pace - time.monotonic() if pace else 0)
        await send({"type": "http.response.body", "body": event, "more_body": True})
    await send({"type": "http.response.body", "body": last})


async def _whole(body: dict[str, Any], send: Send) -> None:
    tokens = int(body["max_tokens"])
    message = {"role": "assistant", "content": " word" * tokens}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}
    head = {**_HEAD, "object": "chat.completion", "model": _model()}
    await _json(send, {**head, "choices": [choice], "usage": _usage(tokens)})


async def _json(send: Send, document: dict[str, Any]) -> None:
    body = json.dumps(document).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@cache
def events_of(tokens: int) -> Sequence[bytes]:
    """The events of an answer of so many tokens: recorded ones where there are, else made up. The last is [DONE]."""
    folder = os.environ.get("WEIR_BENCH_EVENTS")
    if folder and (recorded := Path(folder, f"{tokens}.events")).exists():
        return split_events(recorded.read_bytes())
    deltas = [{"content": " word"} for _ in range(tokens)]
    ends = [None] * (tokens - 1) + ["length"]
    chunks = [
        {**_HEAD, "model": _model(), "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": end}]}
        for delta, end in zip(deltas, ends, strict=True)
    ]
    chunks.append({**_HEAD, "model": _model(), "choices": [], "usage": _usage(tokens)})
    return [
        *(b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + SPLIT for chunk in chunks),
        b"data: [DONE]\n\n",
    ]


def split_events(body: bytes) -> list[bytes]:
    """An event stream cut after each event. What goes with an event, its id or a comment before it, stays with it."""
    return [part + SPLIT for part in body.split(SPLIT) if part.strip()]


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": tokens, "total_tokens": PROMPT_TOKENS + tokens}


def _model() -> str:
    return os.environ.get("WEIR_BENCH_MODEL", "bench")
