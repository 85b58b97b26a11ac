"""The suite on servers that are wrong on purpose: each kind of check fails there, and passes on a right answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from infra.conformance import wire
from infra.conformance.case import Case, Result, Verdict, Wire
from infra.conformance.catalogue import all_cases
from infra.conformance.frames import CLOSE, PONG, TEXT, frame
from infra.conformance.runner import run_cases
from tests.functional.conformance.wrong_server import CHAT, KEY, Respond, always, answer, error, serving

CASES = {case.title: case for case in all_cases()}
STREAM = {**CHAT, "object": "chat.completion.chunk"}
TRACEBACK = 'Traceback (most recent call last):\n  File "/srv/app.py", line 1'


def chunk(**changes: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"role": "assistant", "content": "Rhine"}, "finish_reason": "length"}
    return {**STREAM, "choices": [choice], **changes} | ({} if "usage" in changes else {"usage": None})


def stream(*chunks: dict[str, Any], end: bytes = b"data: [DONE]\n\n", kind: str = "text/event-stream") -> bytes:
    body = b"".join(b"data: %b\n\n" % json.dumps(one).encode() for one in chunks) + end
    return answer(200, body, "Cache-Control: no-cache", "x-request-id: r-123456", kind=kind)


async def verdict_on(title: str, respond: Respond) -> Result:
    return (await run([CASES[title]], respond))[0]


async def run(cases: Sequence[Case], respond: Respond) -> list[Result]:
    async with serving(respond) as target, asyncio.timeout(60):
        return await run_cases(cases, target, advance=lambda _: None)


SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"


def socket(*frames: bytes, subprotocol: str | None = None) -> Respond:
    """A handshake taken, whatever it was, and these frames."""
    chosen = "" if subprotocol is None else f"Sec-WebSocket-Protocol: {subprotocol}\r\n"
    return always(SWITCHED.replace(b"\r\n\r\n", f"\r\n{chosen}\r\n".encode()), *frames)


def from_server(opcode: int, payload: bytes) -> bytes:
    return frame(opcode, payload, masked=False)


CREATED = from_server(TEXT, b'{"type":"session.created"}')

WRONG: tuple[tuple[str, Respond], ...] = (
    ("realtime: a subprotocol that nobody knows", socket(CREATED, subprotocol="x-other")),
    ("realtime: a subprotocol in another case", socket(CREATED, subprotocol="realtime")),
    ("slow: a stream read 64 bytes at a time", always(stream(chunk(), end=b""))),
    ("realtime: a good handshake", socket(from_server(CLOSE, b"\x03\xf3"))),
    ("realtime: a good handshake", socket(from_server(TEXT, b"no JSON"))),
    ("realtime: a good handshake", socket(frame(TEXT, b"{}"))),
    ("realtime: a good handshake", socket(from_server(TEXT, b'{"type":"other"}'))),
    ("realtime: a good handshake", always(error(400))),
    ("realtime: an older version", socket(CREATED)),
    ("realtime: an older version", always(error(426))),
    ("realtime: the opcode 0x3", socket(CREATED)),
    ("realtime: the opcode 0x3", socket(from_server(CLOSE, b"\x03\xe8"))),
    ("realtime: a ping", socket(from_server(PONG, b"other"))),
    ("realtime: no JSON", socket(CREATED)),
    ("realtime: no JSON", socket(from_server(TEXT, b'{"type":"error","error":{"message":"x"}}'))),
    ("realtime: a WebSocket on another path", socket(CREATED)),
    ("errors: the shape of 400", always(answer(200, CHAT))),
    ("errors: the shape of 400", always(error(400, param="other"))),
    ("errors: the shape of 400", always(error(400, param="temperature", code=400))),
    ("errors: the shape of 400", always(error(400, param="temperature", type="None"))),
    ("errors: the shape of 400", always(answer(400, {"detail": "temperature"}))),
    ("errors: the shape of 400", always(answer(400, b"<h1>Bad Request</h1>", kind="text/html"))),
    ("errors: the shape of 400", always(error(500))),
    ("errors: the shape of 400", always(error(400, param="temperature", message=TRACEBACK))),
    ("errors: the shape of 400", always(error(429, param="temperature"))),
    ("errors: no key", always(answer(200, {"object": "list", "data": []}))),
    ("errors: a wrong key", always(error(401, message=f"not {KEY}"))),
    ("errors: a good key and a wrong one", always(answer(200, {}))),
    ("errors: x-request-id on 200", always(answer(200, {}))),
    ("errors: x-request-id is new each time", always(answer(200, {}, "x-request-id: same-0001"))),
    ("errors: WWW-Authenticate on 401", always(error(401))),
    ("errors: x-ratelimit headers", always(answer(200, CHAT, "x-ratelimit-remaining-tokens: -20"))),
    ("routes: GET /chat/completions", always(error(405))),
    ("routes: GET /chat/completions", always(error(404))),
    ("routes: /chat/completions with a slash at its end", always(error(307, "Location: /v1/chat/completions"))),
    ("routes: the list of models", always(answer(200, {"object": "list", "data": [{"id": "a"}]}))),
    ("routes: a preflight", always(answer(200, b"", "Access-Control-Allow-Origin: *"))),
    ("answers: the shape of a chat", always(answer(200, {**CHAT, "created": 1_700_000_000_000}))),
    ("answers: usage adds up", always(answer(200, {**CHAT, "usage": {**CHAT["usage"], "total_tokens": 8}}))),
    ("answers: ids are new each time", always(answer(200, CHAT))),
    ("answers: max_tokens 1", always(answer(200, CHAT))),
    ("answers: n = 2", always(answer(200, CHAT))),
    ("answers: logprobs", always(answer(200, CHAT))),
    (
        "answers: a JSON object",
        always(answer(200, {**CHAT, "choices": [{**CHAT["choices"][0], "finish_reason": "stop"}]})),
    ),
    ("answers: a stop string", always(answer(200, CHAT))),
    ("messages: a system message", always(error(400, param="messages[0].role"))),
    ("streams: Content-Type", always(stream(chunk(), kind="application/json"))),
    ("streams: [DONE] ends it", always(stream(chunk(), end=b""))),
    ("streams: [DONE] ends it", always(stream(chunk(), end=b"data: [DONE]"))),
    ("streams: one finish_reason", always(stream(chunk(), chunk()))),
    ("streams: no usage unless asked for", always(stream(chunk(), chunk(choices=[], usage=CHAT["usage"])))),
    ("streams: usage when asked for", always(stream(chunk()))),
    ("streams: every line is of the grammar", always(stream(chunk(), end=b"retry: 5\n\ndata: [DONE]\n\n"))),
    ("streams: the OpenAI SDK's decoder reads it", always(stream(chunk(), end=b"id: 1\n\n: ping\n\ndata: [DONE]\n\n"))),
    ("streams: in pieces", always(stream(chunk()))),
    (
        "features: a tool that must be called",
        always(answer(200, {**CHAT, "choices": [{**CHAT["choices"][0], "finish_reason": "stop"}]})),
    ),
    ("fields: chat `temperature` = 1", always(error(400, param="temperature"))),
    ("fields: chat `top_k` = 5", always(error(400, param="other"))),
    ("types: chat `temperature` of type string", always(answer(200, CHAT))),
    ("types: chat `temperature` of type string", always(error(400))),
    ("types: completions `prompt` null", always(answer(200, CHAT))),
    ("ranges: unknown field `no_such_field`", always(answer(200, CHAT))),
    ("json: NaN", always(answer(200, CHAT))),
    ("json: NaN", always(error(500))),
    ("json: `max_tokens` twice", always(answer(200, CHAT))),
    ("sizes: a body of 6 MB", always(answer(200, CHAT))),
    ("engine: `cache_salt`", always(answer(200, CHAT))),
    ("engine: content: an image by URL", always(error(500))),
    ("headers: Content-Type missing", always(error(500))),
    ("headers: Content-Encoding a bomb: 64 MB in 65 kB", always(answer(200, CHAT))),
    ("headers: X-Request-Id of the client, twice", always(answer(200, {**CHAT, "id": "chatcmpl-mine-0001"}))),
    ("headers: an empty name", always(answer(200, {}))),
    ("lines: a method in lower case", always(answer(200, {}))),
    ("lines: HTTP/0.9", always(b'{"object": "list"}')),
    ("lines: Host missing in HTTP/1.1", always(answer(200, {}))),
    ("lines: the absolute form of another server", always(answer(502, {}))),
    ("paths: a parent segment out of the root", always(answer(200, b"root:x:0:0:root"))),
    ("paths: without a key: a double slash within", always(answer(200, {}))),
    ("paths: query: the key in it, and no header", always(answer(200, {}))),
    ("framing: Content-Length and Transfer-Encoding", always(answer(200, CHAT))),
    ("framing: Content-Length and Transfer-Encoding", always(error(400), answer(200, {}))),
    ("framing: chunked before NUL", always(error(400), b"more")),
    ("framing: a trailer with the key", always(answer(200, CHAT))),
    ("framing: a body sent without a key", always(error(401), answer(200, {}), error(404))),
    ("framing: two requests in one write", always(answer(200, {}))),
    ("framing: a whole request in one chunk", always(error(400))),
    ("alive: a chat", always(error(503))),
)

RIGHT: tuple[tuple[str, Respond], ...] = (
    ("realtime: the subprotocol of OpenAI's clients", socket(CREATED, subprotocol="realtime")),
    ("slow: a stream read 64 bytes at a time", always(stream(chunk()))),
    ("realtime: a good handshake", socket(CREATED)),
    ("realtime: an older version", always(error(426, "Upgrade: websocket", "Sec-WebSocket-Version: 13"))),
    ("realtime: a WebSocket on another path", socket(from_server(CLOSE, b"\x11\x34"))),
    ("errors: the shape of 400", always(error(400, param="temperature"))),
    ("errors: no key", always(error(401))),
    ("routes: GET /chat/completions", always(error(405, "Allow: POST, OPTIONS"))),
    ("answers: the shape of a chat", always(answer(200, CHAT))),
    ("answers: usage adds up", always(answer(200, CHAT))),
    ("streams: one finish_reason", always(stream(chunk()))),
    ("streams: usage when asked for", always(stream(chunk(), chunk(choices=[], usage=CHAT["usage"])))),
    ("streams: [DONE] ends it", always(stream(chunk()))),
    ("types: chat `temperature` of type string", always(error(422, param="temperature"))),
    ("json: NaN", always(error(400))),
    ("framing: Content-Length and Transfer-Encoding", always(error(400))),
    ("framing: two requests in one write", always(answer(200, {}), answer(200, {}))),
    ("lines: HTTP/0.9", always(error(400))),
    ("alive: a chat", always(answer(200, CHAT))),
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """This server says all at once: there is no second part to wait for."""
    monkeypatch.setattr(wire, "_QUIET_SECONDS", 0.2)


class TestAWrongServer:
    @pytest.mark.parametrize(("title", "respond"), WRONG, ids=[f"{n}-{row[0]}" for n, row in enumerate(WRONG)])
    async def test_is_found_out(self, title: str, respond: Respond) -> None:
        result = await verdict_on(title, respond)
        assert result.verdict is Verdict.WRONG, result.seen
        assert result.seen

    @pytest.mark.parametrize(("title", "respond"), RIGHT, ids=[row[0] for row in RIGHT])
    async def test_is_ok_where_it_is_right(self, title: str, respond: Respond) -> None:
        result = await verdict_on(title, respond)
        assert (result.verdict, result.case.title) == (Verdict.OK, title), result.seen

    def test_is_found_out_in_every_kind(self) -> None:
        assert {title.partition(":")[0] for title, _ in WRONG} >= {case.kind for case in CASES.values()} - {"slow"}

    @pytest.mark.parametrize(
        "name", ["slow: a body a byte a second", "slow: a header a byte a second", "slow: not one byte"]
    )
    async def test_that_waits_for_ever_is_found_out(self, name: str) -> None:
        case = CASES[name]
        (step,) = case.steps
        assert isinstance(step, Wire)
        hasty = replace(case, steps=(replace(step, pause=0.05, deadline=0.5),))
        (result,) = await run([hasty], lambda _: None)
        assert result.verdict is Verdict.WRONG
        assert "still open" in result.seen


class TestARunOfTheSuite:
    async def test_has_a_result_for_each_case_in_the_order_given(self) -> None:
        cases = [CASES[title] for title in ("alive: a chat", "errors: no key", "json: NaN")]
        results = await run(cases, always(error(401)))
        assert [result.case.title for result in results] == [case.title for case in cases]
        assert [result.verdict for result in results] == [Verdict.WRONG, Verdict.OK, Verdict.WRONG]

    async def test_waits_where_the_server_asks_for_it(self) -> None:
        answers = iter([error(429, "Retry-After: 0"), error(429, "Retry-After: 0"), answer(200, CHAT)])
        result = await verdict_on("answers: the shape of a chat", lambda _: [next(answers)])
        assert result.verdict is Verdict.OK

    async def test_skips_what_a_limit_keeps_it_from(self) -> None:
        result = await verdict_on("answers: the shape of a chat", always(error(429, "Retry-After: 3600")))
        assert result.verdict is Verdict.SKIPPED
        assert "rate limited" in result.seen

    async def test_skips_what_needs_another_key_where_there_is_none(self) -> None:
        result = await verdict_on("features: an Idempotency-Key of another tenant", always(answer(200, CHAT)))
        assert (result.verdict, result.seen) == (Verdict.SKIPPED, "needs --other-key")

    async def test_says_that_nobody_listens(self) -> None:
        async with serving(always(b"")) as target:
            pass
        with pytest.raises(ConnectionRefusedError):
            await run_cases([CASES["alive: the models"]], target, advance=lambda _: None)
