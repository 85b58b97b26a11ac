"""Three hundred requests at once, as the demo's limits promise: all queue, all are answered, none is refused."""

from __future__ import annotations

import asyncio

import httpx

from tests.e2e.conftest import Platform

COUNT = 300
DEADLINE_SECONDS = 120.0


class TestCrowd:
    async def test_of_three_hundred_is_answered_whole_each_with_its_own_text(self, platform: Platform) -> None:
        limits = httpx.Limits(max_connections=COUNT, max_keepalive_connections=0)
        async with httpx.AsyncClient(timeout=DEADLINE_SECONDS, limits=limits) as client:

            async def ask(number: int) -> tuple[int, str, str]:
                document = {
                    "model": platform.model,
                    "messages": [{"role": "user", "content": f"say: number {number} of the crowd"}],
                    "max_tokens": 32,
                    "stream": number % 2 == 0,
                }
                url, headers = f"{platform.base_url}/chat/completions", platform.api.headers()
                response = await client.post(url, json=document, headers=headers)
                return response.status_code, response.text, response.headers.get("x-request-id", "")

            async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as tasks:
                asked = [tasks.create_task(ask(number)) for number in range(COUNT)]
        answers = [task.result() for task in asked]
        assert [text for status, text, _ in answers if status != 200] == []
        assert len({request_id for _, _, request_id in answers}) == COUNT
        for number, (_, text, _) in enumerate(answers):
            if number % 2:
                assert f"number {number} of the crowd" in text
            else:
                assert text.rstrip().endswith("data: [DONE]")
                assert '"error"' not in text
