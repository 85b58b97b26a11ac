"""WebSocket clients of /v1/realtime: text in, text out, token by token; honest close codes for everything else."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.e2e.conftest import Platform
from tests.e2e.sockets import DEADLINE_SECONDS, ask, event, say, send, session, text_of, until


class TestConversation:
    async def test_streams_an_answer_with_its_usage(self, platform: Platform) -> None:
        async with session(platform) as socket:
            created = await event(socket)
            assert created["type"] == "session.created"
            await say(socket, "Hello 🌊 水は低い方へ")
            await ask(socket, platform, max_tokens=64)
            seen = await until(socket, "response.done", "error")
        assert seen[-1]["type"] == "response.done", seen[-1]
        kinds = [item["type"] for item in seen]
        assert "response.created" in kinds
        assert text_of(seen) == "Hello 🌊 水は低い方へ"
        assert kinds.count("response.output_text.delta") > 1
        done = seen[-1]["response"]
        assert done["status"] == "completed"
        assert Decimal(done["usage"]["cost"]) > 0

    async def test_numbers_its_events_without_a_gap(self, platform: Platform) -> None:
        async with session(platform) as socket:
            await say(socket, "one two three")
            await ask(socket, platform)
            seen = await until(socket, "response.done", "error")
        numbers = [item["sequence_number"] for item in seen]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert len({item["event_id"] for item in seen}) == len(seen)

    async def test_remembers_the_turns_before(self, platform: Platform) -> None:
        async with session(platform) as socket:
            for text in ("first", "second"):
                await say(socket, text)
                await ask(socket, platform)
                seen = await until(socket, "response.done", "error")
                assert seen[-1]["type"] == "response.done", seen[-1]
                counted = seen[-1]["response"]["usage"]["prompt_tokens"]
                if text == "first":
                    before = counted
        assert counted > before

    async def test_cancels_a_response(self, platform: Platform) -> None:
        async with session(platform) as socket:
            await say(socket, "on and on")
            await ask(socket, platform, max_tokens=2_000, ignore_eos=True)
            await until(socket, "response.output_text.delta", "error")
            await send(socket, "response.cancel")
            seen = await until(socket, "response.done", "error")
        assert seen[-1]["type"] == "response.done", seen[-1]
        assert seen[-1]["response"]["status"] == "cancelled"

    async def test_cancels_what_it_left_running_when_it_closes(self, platform: Platform) -> None:
        async with session(platform) as socket:
            await say(socket, "on and on")
            await ask(socket, platform, max_tokens=2_000, ignore_eos=True)
            seen = await until(socket, "response.output_text.delta", "error")
            assert seen[-1]["type"] == "response.output_text.delta", seen[-1]
        request_id = seen[-1]["response_id"].removeprefix("resp_")
        assert platform.api.ended(request_id)["outcome"] == "cancelled"


class TestRefusals:
    @pytest.mark.parametrize("key", ["weir_" + "a" * 38, "nonsense"])
    async def test_of_an_unknown_key_closes_with_4401(self, platform: Platform, key: str) -> None:
        async with session(platform, key=key) as socket:
            seen, code = await everything(socket)
        assert code == 4401
        assert [item["error"]["code"] for item in seen] == ["invalid_api_key"]

    async def test_of_a_key_in_the_url_closes_with_4400(self, platform: Platform) -> None:
        url = platform.base_url.replace("http", "ws", 1) + f"/realtime?token={platform.demo['api_key']}"
        async with asyncio.timeout(DEADLINE_SECONDS), connect(url) as socket:
            assert await everything(socket) == ([], 4400)

    async def test_of_bad_events_names_them_and_goes_on(self, platform: Platform) -> None:
        async with session(platform) as socket:
            assert (await event(socket))["type"] == "session.created"
            for text in ("{", "[]", '{"type": 7}', '{"type": "no.such.event"}', '{"no": "type"}'):
                await socket.send(text)
                refusal = await event(socket)
                assert refusal["type"] == "error"
                assert set(refusal["error"]) == {"message", "type", "param", "code"}
            await send(socket, "session.update", session={})
            assert (await event(socket))["type"] == "session.updated"

    async def test_of_a_binary_message_closes_with_4400(self, platform: Platform) -> None:
        async with session(platform) as socket:
            assert (await event(socket))["type"] == "session.created"
            await socket.send(b"{}")
            assert (await everything(socket))[1] == 4400

    async def test_of_an_unknown_model_closes_with_4403(self, platform: Platform) -> None:
        url = platform.base_url.replace("http", "ws", 1) + "/realtime?model=nope"
        headers = {"Authorization": f"Bearer {platform.demo['api_key']}"}
        async with asyncio.timeout(DEADLINE_SECONDS), connect(url, additional_headers=headers) as socket:
            seen, code = await everything(socket)
        assert ([item["error"]["code"] for item in seen], code) == (["model_not_found"], 4403)

    @pytest.mark.parametrize(
        ("response", "param"),
        [
            ({"temperature": 9}, "response.temperature"),
            ({"nonsense": 1}, "response.nonsense"),
            ({"tools": []}, "response.tools"),
        ],
        ids=str,
    )
    async def test_of_a_bad_field_names_it_and_goes_on(
        self, platform: Platform, response: dict[str, Any], param: str
    ) -> None:
        async with session(platform) as socket:
            await say(socket, "still here")
            await ask(socket, platform, **response)
            assert (await until(socket, "error"))[-1]["error"]["param"] == param
            await ask(socket, platform)
            seen = await until(socket, "response.done")
        assert text_of(seen) == "still here"

    @pytest.mark.parametrize("megabytes", [2, 17])
    async def test_of_a_giant_message_closes_it_and_nothing_else(self, platform: Platform, megabytes: int) -> None:
        async with session(platform) as socket:
            with suppress(ConnectionClosed):
                await socket.send("x" * (megabytes * 1024 * 1024))
            _, code = await everything(socket)
        assert code in (1009, 4413)
        assert platform.api.get("/models").status_code == 200


async def everything(socket: ClientConnection) -> tuple[list[dict[str, Any]], int]:
    """All events until the server closes, and its close code."""
    seen: list[dict[str, Any]] = []
    try:
        while True:
            seen.append(await event(socket))
    except ConnectionClosed as closed:
        return seen, closed.rcvd.code if closed.rcvd else 1006
