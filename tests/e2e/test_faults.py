"""kill -9 of gateway, worker and engine while requests run: the platform comes back by itself, and the books agree.
Redis loses all that it had: two commands bring back what was promised to come back.

Invariant checked each time: every call of a client ends within its deadline, with an answer or with an error; a request
that lost worker or engine goes on where it was, or begins anew; what the usage report adds is exactly what the requests
themselves say, each once. These tests run after all others (conftest), because they kill what the others use.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx
import pytest

from tests.e2e.accounts import agreed_report, difference, metered, quiet, total
from tests.e2e.api import bare_id
from tests.e2e.conftest import Platform

CALL_SECONDS = 90.0
RECOVERY_SECONDS = 90.0
COUNT = 90  # more than the engine takes at once (64), so that some wait in the queue when the fault comes
STARTED = 20  # streams that are in mid-token when the fault comes
PIECES = 3  # pieces of text that each of them has brought; TOKENS are far more, so more was to come
TOKENS = 300
BACKGROUND = 8


@dataclass(slots=True)
class Call:
    """One streamed request as its client saw it."""

    key: str
    request_id: str = ""
    text: str = ""
    pieces: int = 0
    done: bool = False
    failure: str = ""


@dataclass(slots=True)
class Crowd:
    """Many calls at once, and the moment when enough of them are in the middle of their answer."""

    platform: Platform
    name: str
    enough: asyncio.Event
    begun: int = 0

    async def run(self, *, fault: Callable[[], None]) -> list[Call]:
        """Every call's end; the fault comes when STARTED streams have brought PIECES of text each."""
        limits = httpx.Limits(max_connections=COUNT, max_keepalive_connections=0)
        async with (
            httpx.AsyncClient(timeout=CALL_SECONDS, limits=limits) as client,
            asyncio.timeout(CALL_SECONDS),
            asyncio.TaskGroup() as tasks,
        ):
            calls = [tasks.create_task(self.ask(client, f"{self.name}-{number}")) for number in range(COUNT)]
            await self.enough.wait()
            fault()
        return [call.result() for call in calls]

    async def ask(self, client: httpx.AsyncClient, key: str) -> Call:
        call = Call(key)
        document = {
            "model": self.platform.model,
            "messages": [{"role": "user", "content": f"say: {key} goes on and on"}],
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "stream": True,
        }
        headers = {**self.platform.api.headers(), "Idempotency-Key": key}
        url = f"{self.platform.base_url}/chat/completions"
        try:
            async with client.stream("POST", url, json=document, headers=headers) as response:
                call.request_id = response.headers.get("x-request-id", "")
                if response.status_code != 200:
                    call.failure = f"status {response.status_code}: {(await response.aread()).decode()}"
                async for line in response.aiter_lines():
                    self._read(call, line)
        except httpx.HTTPError as error:
            call.failure = type(error).__name__
        return call

    def _read(self, call: Call, line: str) -> None:
        if not line.startswith("data:"):
            return
        data = line[5:].strip()
        if data == "[DONE]":
            call.done = True
            return
        event = json.loads(data)
        if "error" in event:
            call.failure = str(event["error"]["code"])
            return
        call.request_id = bare_id(event["id"])
        text = event["choices"][0]["delta"].get("content") or "" if event["choices"] else ""
        call.pieces += bool(text)
        if text and call.pieces == PIECES:
            self.begun += 1
            if self.begun >= STARTED:
                self.enough.set()
        call.text += text


def kill(platform: Platform, role: str) -> int:
    """kill -9 of the process with this role; its pid."""
    pid = platform.instance.pid_of(role)
    os.kill(pid, signal.SIGKILL)
    return pid


def assert_comes_back(platform: Platform, *, role: str, dead: int) -> None:
    """Another process has the role, and a new request is answered."""
    until = time.monotonic() + RECOVERY_SECONDS
    said = "nothing yet"
    while time.monotonic() < until:
        try:
            pids = [item.pid for item in platform.instance.processes() if item.role == role]
            document = {"model": platform.model, "prompt": "say: back", "max_tokens": 4}
            answer = platform.other_api.post("/completions", document)  # on the other tenant's books
            said = f"{role} has {pids}; {answer.status_code} {answer.text[:200]}"
            if answer.status_code == 200 and pids and dead not in pids:
                return
        except httpx.HTTPError as error:
            said = type(error).__name__
        time.sleep(0.2)
    raise AssertionError(f"{role} did not come back within {RECOVERY_SECONDS:.0f} s: {said}")


@pytest.fixture
def ledger(platform: Platform) -> Callable[[list[Call]], None]:
    """Call it with all calls of the test: the usage report must have grown by exactly what they say of themselves."""
    since = platform.started_at
    before = quiet(platform.api, since=since)

    def check(calls: list[Call]) -> None:
        ids = sorted({call.request_id for call in calls})
        assert len(ids) == len(calls)
        told = total([platform.api.ended(request_id, deadline=60)["usage"] for request_id in ids])
        assert metered(platform.api, since=since, before=before, requests=told.requests) == told
        (books,) = agreed_report(platform, "Acme")["check"]
        assert (books["clickhouse"], books["clickhouse_requests"]) == (books["ledger"], books["ledger_requests"])

    return check


class TestKilled:
    @pytest.mark.parametrize("role", ["engine", "worker"])
    async def test_engine_or_worker_costs_no_call_a_token(
        self, platform: Platform, ledger: Callable[[list[Call]], None], role: str
    ) -> None:
        dead: list[int] = []
        crowd = Crowd(platform, f"{role}-{platform.started_at}", asyncio.Event())
        calls = await crowd.run(fault=lambda: dead.append(kill(platform, role)))
        for call in calls:
            assert call.done, call
            assert not call.failure, call
            assert (f"{call.key} goes on and on" * TOKENS).startswith(call.text), call
        ledger(calls)
        assert_comes_back(platform, role=role, dead=dead[0])

    async def test_gateway_leaves_requests_that_a_retry_finds_again(
        self, platform: Platform, ledger: Callable[[list[Call]], None]
    ) -> None:
        dead: list[int] = []
        crowd = Crowd(platform, f"gateway-{platform.started_at}", asyncio.Event())
        first = await crowd.run(fault=lambda: dead.append(kill(platform, "gateway")))
        lost = [call for call in first if not call.done]
        assert lost, "the fault came too late to meet a stream"
        assert_comes_back(platform, role="gateway", dead=dead[0])
        again = Crowd(platform, "again", asyncio.Event())
        async with httpx.AsyncClient(timeout=CALL_SECONDS) as client, asyncio.TaskGroup() as tasks:
            retried = [tasks.create_task(again.ask(client, call.key)) for call in lost]
        calls = [call for call in first if call.done] + [task.result() for task in retried]
        assert [call for call in calls if not call.done or call.failure] == []
        known = {call.key: call for call in calls}
        for call in lost:
            if call.text:
                assert known[call.key].request_id == call.request_id, "a retry attaches to the request that runs"
                assert known[call.key].text.startswith(call.text)
        ledger(calls)


def take_its_folder(platform: Platform) -> None:
    """Valkey is killed, and comes back with nothing."""
    pid = platform.instance.pid_of("valkey")
    os.kill(pid, signal.SIGKILL)
    shutil.rmtree(platform.instance.home / "data" / "valkey" / "appendonlydir")


def bring_back(platform: Platform) -> None:
    """The commands of the operator's page, until they say that all is back."""
    until = time.monotonic() + RECOVERY_SECONDS
    for command in ("rebuild_limits", "rebuild_queue"):
        while (made := platform.instance.manage(command, deadline=RECOVERY_SECONDS)).returncode != 0:
            assert time.monotonic() < until, made.stderr
            time.sleep(0.5)


class TestARedisThatLostAll:
    async def test_gives_each_background_request_back_once_and_tells_who_waits(self, platform: Platform) -> None:
        since, before = platform.started_at, quiet(platform.api, since=platform.started_at)
        asked = {self.background(platform, f"back-{number}"): f"back-{number}" for number in range(BACKGROUND)}
        crowd = Crowd(platform, f"lost-{since}", asyncio.Event())
        calls = await crowd.run(fault=lambda: take_its_folder(platform))
        assert [call for call in calls if not call.done and not call.failure] == [], "who waits is told"
        await asyncio.to_thread(bring_back, platform)
        usages = []
        for request_id, key in asked.items():
            found = platform.api.ended(request_id, deadline=CALL_SECONDS)
            assert (found["outcome"], found["error"]) == ("ok", None), found
            text = found["response"]["choices"][0]["message"]["content"]
            assert (f"{key} goes on and on" * TOKENS).startswith(text)
            assert found["usage"]["completion_tokens"] == TOKENS
            usages.append(found["usage"])
        for call in calls:  # what was not lost has ended, some without a token: their holds were
            answer = platform.api.get(f"/requests/{call.request_id}")
            if answer.status_code == 200 and answer.json()["status"] != "refused":
                usages.append(platform.api.ended(call.request_id)["usage"])
        told = total(usages)
        metered(platform.api, since=since, before=before, requests=told.requests)
        assert difference(quiet(platform.api, since=since), before) == told

    def background(self, platform: Platform, key: str) -> str:
        """The id of a request that is longer than it takes to lose everything."""
        document = {
            "model": platform.model,
            "messages": [{"role": "user", "content": f"say: {key} goes on and on"}],
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "background": True,
        }
        answer = platform.api.post("/chat/completions", document)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])
