"""A key is revoked, or its tenant suspended, while requests run: streams end with an error, and nothing is lost.

The gateway's look every few seconds is put off, so that it can not stand in for the message; `TestTheLook` has it back.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from contracts.errors import AuthFailed
from contracts.outcomes import Outcome
from contracts.wire import encode
from controlplane.local.children import LocalServer
from fairqueue.messages import AbortReason
from gateway import revocation
from gateway.stream import relay
from tenants.limits.keys import REVOKED_CHANNEL
from tenants.limits.revocation import Revocation
from tests.factories.valkeys import on_disk, valkey_of_its_own
from tests.functional.gateway.cast import CONTEXT, MODEL, PRICE, chat_frames
from tests.functional.gateway.conftest import Gateway
from tests.functional.gateway.sockets import ITEM, close_code, event, say, socket
from tests.functional.tenants.cast import request

BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}
STREAM = BODY | {"stream": True}
PATH = "/v1/chat/completions"
PATIENCE_SECONDS = 20
NEVER_SECONDS = 3_600.0


async def revoke(gateway: Gateway, *, told: bool = True, suspended: bool = False) -> None:
    """As the control plane does on commit; `told` False: the message is lost."""
    keys, tenant = ({}, -2) if suspended else ({CONTEXT.api_key_id: -2}, 1)
    await gateway.services.limits.set_epochs(tenant_id="acme", keys=keys, tenant_epoch=tenant)
    message = Revocation(tenant_id="acme", revoked_keys=tuple(keys), suspended=suspended)
    if told:
        await gateway.services.redis.publish(REVOKED_CHANNEL, encode(message))


@asynccontextmanager
async def open_stream(gateway: Gateway, key: str | None = None) -> AsyncIterator[httpx.Response]:
    async with gateway.http.stream("POST", PATH, json=STREAM, headers=gateway.auth(key)) as answer:
        yield answer


async def rest_of(answer: httpx.Response) -> bytes:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return b"".join([piece async for piece in answer.aiter_raw()])


def error_of(content: bytes) -> dict[str, Any]:
    last = [line for line in content.decode().split("\n") if line.startswith("data: ")][-1]
    error: dict[str, Any] = json.loads(last.removeprefix("data: "))["error"]
    return error


@pytest.fixture
def look_seconds() -> float:
    """How often the gateway looks at the epochs in Redis by itself."""
    return NEVER_SECONDS


@pytest.fixture(autouse=True)
def _looks(monkeypatch: pytest.MonkeyPatch, look_seconds: float) -> None:
    monkeypatch.setattr(revocation, "RECHECK_SECONDS", look_seconds)


@pytest.fixture(autouse=True)
async def _subscribed(_looks: None, gateway: Gateway) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        await gateway.services.revocations.subscribed.wait()


class TestRunning:
    @pytest.mark.parametrize("suspended", [False, True])
    async def test_a_stream_ends_with_an_error_and_is_billed_for_what_it_released(
        self, gateway: Gateway, suspended: bool
    ) -> None:
        async with open_stream(gateway) as answer:
            claim = await gateway.worker.claim()
            frames = chat_frames(claim.ticket, ["one", "two"])[:2]
            await gateway.worker.step(claim, frames, first_seq=1)
            await revoke(gateway, suspended=suspended)
            content = await rest_of(answer)
        assert error_of(content)["code"] == "key_revoked"
        assert b"[DONE]" not in content
        assert (await gateway.worker.aborted(claim)).reason is AbortReason.REVOKED
        await gateway.worker.end(claim, last_seq=2, outcome=Outcome.CANCELLED, finish="", error="key_revoked")
        hold = await gateway.services.redis.hgetall(f"w:{{t:acme}}:hold:{claim.ticket.request_id}")
        billed = claim.ticket.prompt_tokens * PRICE.input_nano + 2 * PRICE.output_nano
        assert (hold[b"st"], hold[b"cost"]) == (b"settled", str(billed).encode())

    @pytest.mark.parametrize("stream", [False, True])
    async def test_its_error_says_what_is_billed(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch, stream: bool
    ) -> None:
        monkeypatch.setattr(
            relay, "CUT_END_SECONDS", float(PATIENCE_SECONDS)
        )  # the worker ends it, however busy we are
        async with asyncio.TaskGroup() as tasks:
            client = tasks.create_task(
                gateway.http.post(
                    PATH, json=BODY | {"stream": stream}, headers=gateway.auth(), timeout=PATIENCE_SECONDS
                )
            )
            claim = await gateway.worker.claim()
            await gateway.worker.step(claim, chat_frames(claim.ticket, ["one", "two"])[:2], first_seq=1)
            await revoke(gateway)
            await gateway.worker.aborted(claim)
            await gateway.worker.end(claim, last_seq=2, outcome=Outcome.CANCELLED, finish="", error="key_revoked")
        told = client.result()
        last = told.content.decode().split("data: ")[-1] if stream else told.text
        document = json.loads(last)
        billed = claim.ticket.prompt_tokens * PRICE.input_nano + 2 * PRICE.output_nano
        assert (told.status_code, document["error"]["code"]) == (200 if stream else 401, "key_revoked")
        assert document["usage"]["completion_tokens"] == 2
        assert Decimal(document["usage"]["cost"]) * 10**9 == billed

    async def test_a_plain_answer_becomes_401(self, gateway: Gateway) -> None:
        async with asyncio.TaskGroup() as tasks:
            client = tasks.create_task(gateway.http.post(PATH, json=BODY, headers=gateway.auth()))
            await gateway.worker.claim()
            await revoke(gateway)
        answer = client.result()
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "key_revoked")

    async def test_other_tenants_never_notice(self, gateway: Gateway) -> None:
        async with open_stream(gateway, gateway.mallory) as answer:
            claim = await gateway.worker.claim()
            await revoke(gateway)
            for seq, frame in enumerate(chat_frames(claim.ticket, ["a"]), start=1):
                await gateway.worker.step(claim, [frame], first_seq=seq)
            await gateway.worker.end(claim, last_seq=2)
            assert (await rest_of(answer)).endswith(b"data: [DONE]\n\n")

    async def test_the_key_is_refused_from_then_on(self, gateway: Gateway) -> None:
        await revoke(gateway)
        answer = await gateway.http.post(PATH, json=BODY, headers=gateway.auth())
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


class TestAWebSocket:
    @pytest.mark.parametrize("suspended", [False, True])
    async def test_of_it_has_its_response_cut_and_is_closed(self, gateway: Gateway, suspended: bool) -> None:
        async with socket(gateway, key=gateway.key) as connection:
            await say(connection, type="response.create", response={"model": MODEL, "input": [ITEM]})
            claim = await gateway.worker.claim()
            await gateway.worker.step(claim, chat_frames(claim.ticket, ["one"])[:1], first_seq=1)
            seen = [await event(connection)]
            while seen[-1]["type"] != "response.output_text.delta":
                seen.append(await event(connection))
            await revoke(gateway, suspended=suspended)
            while seen[-1]["type"] not in ("error", "response.done"):
                seen.append(await event(connection))
            assert seen[-1]["type"] == "response.done"
            assert seen[-1]["response"]["status"] == "failed"
            assert seen[-1]["response"]["status_details"]["error"]["code"] == "key_revoked"
            assert seen[-1]["response"]["output"][0]["content"][0]["text"] == "one"
            assert await close_code(connection) == 4401
        assert (await gateway.worker.aborted(claim)).reason is AbortReason.REVOKED


class TestWaiting:
    async def test_a_queued_request_ends_at_once(self, gateway: Gateway) -> None:
        async with open_stream(gateway) as answer:
            await revoke(gateway)
            assert error_of(await rest_of(answer))["code"] == "key_revoked"
        await no_longer_waiting(gateway)

    async def test_what_nobody_reads_ends_too(self, gateway: Gateway) -> None:
        """Its client left and asked for it to go on; no gateway holds it."""
        body = STREAM | {"on_disconnect": "continue"}
        async with gateway.http.stream("POST", PATH, json=body, headers=gateway.auth()):
            claim = await gateway.worker.claim()
        await revoke(gateway)
        assert (await gateway.worker.aborted(claim)).reason is AbortReason.REVOKED


class TestLostMessage:
    async def test_the_epochs_are_looked_at_when_the_subscription_comes_back(self, gateway: Gateway) -> None:
        async with open_stream(gateway) as answer:
            claim = await gateway.worker.claim()
            await gateway.worker.step(claim, chat_frames(claim.ticket, ["one"])[:1], first_seq=1)
            await revoke(gateway, told=False)
            await gateway.services.redis.execute_command("CLIENT", "KILL", "TYPE", "PUBSUB")
            assert error_of(await rest_of(answer))["code"] == "key_revoked"
        assert (await gateway.worker.aborted(claim)).reason is AbortReason.REVOKED


class TestTheLook:
    """Nothing but the look can say it: the message is lost, and the subscription stands."""

    @pytest.fixture
    def look_seconds(self) -> float:
        return 0.05

    @pytest.mark.parametrize("suspended", [False, True])
    async def test_cuts_a_stream_whose_message_was_lost(self, gateway: Gateway, suspended: bool) -> None:
        async with open_stream(gateway) as answer:
            claim = await gateway.worker.claim()
            await gateway.worker.step(claim, chat_frames(claim.ticket, ["one"])[:1], first_seq=1)
            await revoke(gateway, told=False, suspended=suspended)
            assert error_of(await rest_of(answer))["code"] == "key_revoked"
        assert (await gateway.worker.aborted(claim)).reason is AbortReason.REVOKED

    async def test_leaves_a_good_key_alone(self, gateway: Gateway) -> None:
        async with open_stream(gateway, gateway.mallory) as good, open_stream(gateway) as bad:
            claims = [await gateway.worker.claim() for _ in range(2)]
            (mine,) = [claim for claim in claims if claim.ticket.tenant_id == "mallory"]
            await revoke(gateway, told=False)
            assert error_of(await rest_of(bad))["code"] == "key_revoked"  # so it has looked
            frames = chat_frames(mine.ticket, ["a"])
            await gateway.worker.step(mine, frames, first_seq=1)
            await gateway.worker.end(mine, last_seq=len(frames))
            assert (await rest_of(good)).endswith(b"data: [DONE]\n\n")


class TestRedisRestarts:
    """The key is revoked while there is no Redis to tell: nothing is pushed and nothing is published, ever."""

    @pytest.fixture
    def valkey(self, tmp_path: Path) -> Iterator[LocalServer]:
        with valkey_of_its_own(tmp_path) as server:
            yield server

    @pytest.fixture
    def valkey_url(self, valkey: LocalServer) -> str:
        return f"redis://127.0.0.1:{valkey.spec.port}/0"

    async def test_t10_what_postgresql_says_cuts_and_refuses_once_it_is_back(
        self, gateway: Gateway, valkey: LocalServer
    ) -> None:
        async with open_stream(gateway, gateway.mallory) as good, open_stream(gateway) as bad:
            claims = {claim.ticket.tenant_id: claim for claim in [await gateway.worker.claim() for _ in range(2)]}
            for claim in claims.values():
                await gateway.worker.step(claim, chat_frames(claim.ticket, ["one"])[:1], first_seq=1)
            await on_disk(gateway.services.redis)
            valkey.stop()
            gateway.directory.revoked.add(CONTEXT.api_key_id)
            await valkey.start_here()
            assert error_of(await rest_of(bad))["code"] == "key_revoked"
            assert (await gateway.worker.aborted(claims["acme"])).reason is AbortReason.REVOKED
            await gateway.worker.step(claims["mallory"], chat_frames(claims["mallory"].ticket, []), first_seq=2)
            await gateway.worker.end(claims["mallory"], last_seq=2)
            assert (await rest_of(good)).endswith(b"data: [DONE]\n\n")
        answer = await gateway.http.post(PATH, json=BODY, headers=gateway.auth())
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        with pytest.raises(AuthFailed):  # also where a process still had it in its cache
            await gateway.services.limits.hold(request(1, tenant_id="acme", api_key_id=CONTEXT.api_key_id))


async def no_longer_waiting(gateway: Gateway) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await gateway.queue.depths()).waiting:  # noqa: ASYNC110 - the pool offers no event
            await asyncio.sleep(0.02)
