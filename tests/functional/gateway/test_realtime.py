"""/v1/realtime by a WebSocket client."""

import asyncio
import json
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosedError
from websockets.typing import Subprotocol

from contracts.outcomes import Outcome
from contracts.tenancy import Limit, Metric, Scope
from fairqueue.keys import mailbox_channel
from fairqueue.messages import Abort, AbortReason
from gateway.admission import Admission
from gateway.services import GatewaySettings
from gateway.stream.mailbox import Mailbox
from gateway.surface import limits
from stores.subscription import Subscriber
from tests.functional.gateway.cast import CONTEXT, MODEL, chat_frames
from tests.functional.gateway.conftest import Gateway, serving
from tests.functional.gateway.sockets import ITEM, close_code, event, say, socket

EVERY: dict[str, int] = {"older_than_ms": 0, "limit": 100}


class TestRealtime:
    async def test_answers_and_remembers_the_conversation(self, gateway: Gateway) -> None:
        async with socket(gateway, key=gateway.key) as connection:
            assert (await event(connection))["type"] == "session.created"
            await say(connection, type="session.update", session={"model": MODEL, "temperature": 0})
            await say(connection, type="conversation.item.create", item=ITEM)
            await say(connection, type="response.create")
            claim = await gateway.worker.serve(["Hel", "lo 🦊"])
            seen = [await event(connection) for _ in range(6)]
            await say(connection, type="conversation.item.create", item=ITEM)
            await say(connection, type="response.create")
            again = await gateway.worker.serve(["x"])
        assert [e["type"] for e in seen] == [
            "session.updated", "conversation.item.created", "response.created",
            "response.output_text.delta", "response.output_text.delta", "response.done",
        ]  # fmt: skip
        assert [e["sequence_number"] for e in seen] == [2, 3, 4, 5, 6, 7]
        assert "".join(e.get("delta", "") for e in seen) == "Hello 🦊"
        done = seen[-1]["response"]
        assert (done["status"], done["finish_reason"]) == ("completed", "stop")
        assert done["output"][0]["content"][0]["text"] == "Hello 🦊"
        assert done["usage"]["completion_tokens"] == 3
        assert done["id"] == f"resp_{claim.ticket.request_id}" == seen[2]["response_id"]
        assert [m["content"] for m in json.loads(again.ticket.body)["messages"]] == ["Hi", "Hello 🦊", "Hi"]

    @pytest.mark.parametrize(("offered", "chosen"), [(["x-other", "realtime"], "realtime"), (["x-other"], None)])
    async def test_chooses_its_own_subprotocol_where_it_is_offered(
        self, gateway: Gateway, offered: list[Subprotocol], chosen: str | None
    ) -> None:
        async with socket(gateway, key=gateway.key, subprotocols=offered) as connection:
            assert (await event(connection))["type"] == "session.created"
            assert connection.subprotocol == chosen

    async def test_takes_its_key_in_the_first_message(self, gateway: Gateway) -> None:
        async with socket(gateway) as connection:
            await say(connection, type="session.authenticate", api_key=gateway.key)
            created = await event(connection)
        assert created["type"] == "session.created"
        assert gateway.key not in json.dumps(created)

    async def test_takes_its_model_from_the_url_and_its_bound_by_the_realtime_name(self, gateway: Gateway) -> None:
        async with socket(gateway, key=gateway.key, query=f"?model={MODEL}") as connection:
            assert (await event(connection))["session"]["model"] == MODEL
            await say(connection, type="response.create", response={"input": [ITEM], "max_output_tokens": 2})
            claim = await gateway.worker.serve(["a", "b"], finish="length")
            seen = [await event(connection) for _ in range(4)]
        assert (claim.ticket.model, claim.ticket.max_tokens) == (MODEL, 2)
        assert seen[-1]["response"]["status"] == "incomplete"
        assert seen[-1]["response"]["kept"] is True

    async def test_a_full_conversation_is_an_event_and_the_connection_stays(self, gateway: Gateway) -> None:
        item = {"type": "message", "role": "user", "content": "x" * 1_000_000}
        async with socket(gateway, key=gateway.key) as connection:
            await event(connection)
            for _ in range(limits.REALTIME_BYTES_MAX // 1_000_000):
                await say(connection, type="conversation.item.create", item=item)
                assert (await event(connection))["type"] == "conversation.item.created"
            await say(connection, type="conversation.item.create", item=item)
            refusal = await event(connection)
            await say(connection, type="session.update", session={})
            assert (await event(connection))["type"] == "session.updated"
        assert (refusal["error"]["code"], refusal["error"]["param"]) == ("conversation_full", "item")

    async def test_cancels_a_response(self, gateway: Gateway) -> None:
        async with socket(gateway, key=gateway.key) as connection:
            await event(connection)
            await say(connection, type="response.create", response={"model": MODEL, "input": [ITEM]})
            claim = await gateway.worker.claim()
            created = await event(connection)
            await gateway.worker.step(claim, chat_frames(claim.ticket, ["Hel"])[:1], first_seq=1)
            assert (await event(connection))["delta"] == "Hel"
            await say(connection, type="response.cancel", response_id=created["response_id"])
            done = await event(connection)
            assert (await gateway.worker.aborted(claim)).reason is AbortReason.CANCELLED
        assert (done["type"], done["response"]["status"]) == ("response.done", "cancelled")
        assert done["response"]["output"][0]["content"][0]["text"] == "Hel"

    async def test_a_lost_connection_cancels(self, gateway: Gateway) -> None:
        async with socket(gateway, key=gateway.key) as connection:
            await say(connection, type="response.create", response={"model": MODEL, "input": [ITEM]})
            claim = await gateway.worker.claim()
        assert (await gateway.worker.aborted(claim)).reason is AbortReason.CANCELLED

    async def test_a_cancel_right_after_the_create_is_never_lost(self, gateway: Gateway) -> None:
        requests = []
        async with socket(gateway, key=gateway.key) as connection:
            await event(connection)
            for _ in range(20):
                await say(connection, type="response.create", response={"model": MODEL, "input": [ITEM]})
                await say(connection, type="response.cancel")
                created, done = await event(connection), await event(connection)
                assert (created["type"], done["type"]) == ("response.created", "response.done")
                assert done["response_id"] == created["response_id"]
                assert done["response"]["status"] == "cancelled"
                requests.append(done["response"]["request_id"])
            await say(connection, type="session.update", session={})
            assert (await event(connection))["type"] == "session.updated"
        ended = {record.request_id: record.outcome for record in await gateway.queue.unsettled(**EVERY)}
        assert ended == dict.fromkeys(requests, Outcome.CANCELLED)
        assert len(ended) == 20
        assert gateway.services.mailbox.open_inboxes == 0

    async def test_a_connection_lost_right_after_the_create_cancels(
        self, gateway: Gateway, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with socket(gateway, key=gateway.key) as connection:
            await event(connection)
            await say(connection, type="response.create", response={"model": MODEL, "input": [ITEM]})
            connection.transport.abort()
        async with asyncio.timeout(10):
            while not (ended := await gateway.queue.unsettled(**EVERY)):  # noqa: ASYNC110 - the queue offers no event
                await asyncio.sleep(0.02)
        assert [record.outcome for record in ended] == [Outcome.CANCELLED]
        assert [record for record in caplog.records if record.exc_info] == []

    async def test_a_failure_is_a_failed_response(self, gateway: Gateway) -> None:
        async with socket(gateway, key=gateway.key) as connection:
            await event(connection)
            await say(connection, type="response.create", response={"model": MODEL, "input": [ITEM]})
            claim = await gateway.worker.claim()
            await gateway.worker.end(claim, last_seq=0, outcome=Outcome.FAILED, finish="", error="engine_error")
            await event(connection)
            done = (await event(connection))["response"]
        assert (done["status"], done["status_details"]["error"]["code"]) == ("failed", "engine_error")
        assert done["finish_reason"] is None

    @pytest.mark.parametrize(
        ("sent", "code", "param"),
        [
            ({"type": "response.create"}, "missing_field", "response.input"),
            ({"type": "response.create", "response": {"input": [ITEM]}}, "missing_field", "response.model"),
            ({"type": "response.create", "response": {"n": 2}}, "unsupported_parameter", "response.n"),
            (
                {"type": "response.create", "response": {"model": "nope", "input": [ITEM]}},
                "model_not_found",
                "response.model",
            ),
            ({"type": "session.update", "session": {"voice": "alloy"}}, "unknown_parameter", "session.voice"),
            ({"type": "session.update", "session": {}, "voice": "alloy"}, "unknown_parameter", "voice"),
            ({"type": "session.update", "session": {}, "": 1}, "unknown_parameter", "body"),
            ({"type": "session.update", "session": {}, "event_id": 1}, "invalid_type", "event_id"),
            ({"type": "session.update", "session": {}, "event_id": "x" * 513}, "string_too_long", "event_id"),
            ({"type": "conversation.item.create", "item": ITEM | {"id": [1]}}, "invalid_type", "item.id"),
            ({"type": "conversation.item.create", "item": ITEM | {"id": "x" * 65}}, "string_too_long", "item.id"),
            ({"type": "response.cancel", "response_id": 5}, "invalid_type", "response_id"),
            ({"type": "response.cancel", "response_id": "resp_1"}, "not_found", "response_id"),
            ({"type": "session.update", "session": {"model": "nope"}}, "model_not_found", "session.model"),
            ({"type": []}, "unknown_event", "type"),
            ({"type": "input_audio_buffer.append"}, "unknown_event", "type"),
            ({"type": 7}, "unknown_event", "type"),
            ({}, "unknown_event", "type"),
            ([], "invalid_json", "body"),
            (None, "invalid_json", "body"),
        ],
    )  # fmt: skip
    async def test_a_refusal_is_an_event_and_the_connection_stays(
        self, gateway: Gateway, sent: Any, code: str, param: str
    ) -> None:
        async with socket(gateway, key=gateway.key) as connection:
            await event(connection)
            await connection.send(json.dumps(sent))
            refusal = await event(connection)
            await say(connection, type="session.update", session={})
            assert (await event(connection))["type"] == "session.updated"
        assert (refusal["type"], refusal["error"]["code"], refusal["error"]["param"]) == ("error", code, param)

    async def test_an_item_keeps_the_id_that_its_client_gave_it(self, gateway: Gateway) -> None:
        async with socket(gateway, key=gateway.key) as connection:
            await event(connection)
            await say(connection, type="conversation.item.create", item=ITEM | {"id": "mine"})
            created = (await event(connection))["item"]
        assert created == {"type": "message", "role": "user", "content": "Hi", "id": "mine"}

    async def test_a_refusal_names_the_event_that_it_is_about(self, gateway: Gateway) -> None:
        async with socket(gateway, key=gateway.key) as connection:
            await event(connection)
            wrong = ({"type": "nope"}, {"type": "response.create", "response": {"model": "nope", "input": [ITEM]}})
            for number, sent in enumerate(wrong):
                await say(connection, event_id=f"mine-{number}", **sent)
                assert (await event(connection))["error"]["event_id"] == f"mine-{number}"

    @pytest.mark.parametrize(
        ("sent", "code", "param"),
        [("no JSON", "invalid_json", "body"), ("", "invalid_json", "body"), ('{"a":1,"a":2}', "duplicate_key", "a")],
    )
    async def test_what_is_no_json_is_refused_likewise(
        self, gateway: Gateway, sent: str, code: str, param: str
    ) -> None:
        async with socket(gateway, key=gateway.key) as connection:
            await event(connection)
            await connection.send(sent)
            refusal = await event(connection)
            await say(connection, type="session.update", session={})
            assert (await event(connection))["type"] == "session.updated"
        assert (refusal["type"], refusal["error"]["code"], refusal["error"]["param"]) == ("error", code, param)


class TestCancel:
    async def test_without_an_id_ends_all_that_run(self, gateway: Gateway) -> None:
        """Also where it comes before any of them was admitted."""
        async with socket(gateway, key=gateway.key, query=f"?model={MODEL}") as connection:
            for kind in ("response.create", "response.create", "response.cancel"):
                await say(
                    connection, type=kind, **({"response": {"input": [ITEM]}} if kind == "response.create" else {})
                )
            ended: list[str] = []
            while len(ended) < 2:
                seen = await event(connection)
                assert seen["type"] != "error", seen
                if seen["type"] == "response.done":
                    ended.append(seen["response"]["status"])
        assert ended == ["cancelled", "cancelled"]

    async def test_of_nothing_is_an_error(self, gateway: Gateway) -> None:
        async with socket(gateway, key=gateway.key) as connection:
            await event(connection)
            await say(connection, type="response.cancel")
            error = (await event(connection))["error"]
        assert (error["code"], error["param"], error["message"]) == ("not_found", "response_id", "no response runs")


class TestCloseCodes:
    @pytest.mark.parametrize(
        ("message", "code"),
        [
            (b"binary", 4400),
            (" " * 1_048_577, 4413),
        ],
    )
    async def test_a_message_that_cannot_be_read(self, gateway: Gateway, message: str | bytes, code: int) -> None:
        async with socket(gateway, key=gateway.key) as connection:
            await connection.send(message)
            assert await close_code(connection) == code

    async def test_a_wrong_key(self, gateway: Gateway) -> None:
        async with socket(gateway, key="weir_wrong") as connection:
            assert await close_code(connection) == 4401

    async def test_a_management_key(self, gateway: Gateway) -> None:
        key = gateway.directory.issue(replace(CONTEXT, api_key_id="manager", scopes=frozenset({"manage"})))
        async with socket(gateway, key=key) as connection:
            assert await close_code(connection) == 4403

    @pytest.mark.parametrize(
        "first", ['{"type":"response.create"}', '{"type":"session.authenticate","api_key":"x"}', "[]", "no JSON"]
    )
    async def test_no_key_in_the_first_message(self, gateway: Gateway, first: str) -> None:
        async with socket(gateway) as connection:
            await connection.send(first)
            assert await close_code(connection) == 4401

    async def test_t25_a_key_in_the_url(self, gateway: Gateway) -> None:
        async with socket(gateway, query=f"?token={gateway.key}") as connection:
            assert await close_code(connection) == 4400

    @pytest.mark.parametrize(("query", "param"), [("?voice=alloy", "voice"), ("?model=", "model")])
    async def test_a_url_with_something_else(self, gateway: Gateway, query: str, param: str) -> None:
        async with socket(gateway, key=gateway.key, query=query) as connection:
            assert (await event(connection))["error"]["param"] == param
            assert await close_code(connection) == 4400

    @pytest.mark.parametrize("first", [True, False], ids=["key in its header", "key in its first message"])
    async def test_a_url_with_an_unknown_model(self, gateway: Gateway, first: bool) -> None:
        async with socket(gateway, key=gateway.key if first else None, query="?model=nope") as connection:
            if not first:
                await say(connection, type="session.authenticate", api_key=gateway.key)
            refusal = await event(connection)
            assert (refusal["type"], refusal["error"]["code"]) == ("error", "model_not_found")
            assert await close_code(connection) == 4403

    async def test_a_url_with_a_model_that_the_key_may_not_use(self, gateway: Gateway) -> None:
        key = gateway.directory.issue(replace(CONTEXT, api_key_id="other", allowed_models=frozenset({"other"})))
        async with socket(gateway, key=key, query=f"?model={MODEL}") as connection:
            assert (await event(connection))["error"]["code"] == "model_not_allowed"
            assert await close_code(connection) == 4403

    async def test_text_that_is_no_utf8(self, gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
        async with socket(gateway, key=gateway.key) as connection:
            await connection.send(b'{"type": "\xff"}', text=True)
            assert await close_code(connection) == 1007
        assert [record for record in caplog.records if record.exc_info] == []

    async def test_text_that_is_no_utf8_in_pieces(self, gateway: Gateway) -> None:
        async with socket(gateway, key=gateway.key) as connection:
            await connection.send([b'{"type": "\xff', b'"}'], text=True)
            assert await close_code(connection) == 1007

    async def test_t24_a_message_far_too_big(self, gateway: Gateway) -> None:
        async with socket(gateway, key=gateway.key) as connection:
            with suppress(ConnectionClosedError):
                await connection.send(" " * (2 * limits.REALTIME_FRAME_BYTES_MAX + 1))
            assert await close_code(connection) == 1009

    @pytest.mark.parametrize("piece", [b"", b" "])
    async def test_t24_a_message_in_too_many_pieces(self, gateway: Gateway, piece: bytes) -> None:
        async with socket(gateway, key=gateway.key) as connection:
            await event(connection)
            most = limits.REALTIME_FRAGMENTS_MAX
            await pieces(connection, b'{"type":', piece, most - 2, b'"session.update","session":{}}')
            assert (await event(connection))["type"] == "session.updated"
            await pieces(connection, b'{"type":', piece, most - 1, b'"session.update","session":{}}')
            assert await close_code(connection) == 1009

    async def test_a_frame_that_is_none(self, gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
        async with socket(gateway, key=gateway.key) as connection:
            connection.transport.write(b"\xf3\x80\x00\x00\x00\x00")  # reserved bits and an unknown opcode
            assert await close_code(connection) == 1002
        assert [record for record in caplog.records if record.exc_info] == []

    async def test_too_many_responses_again_and_again(self, gateway: Gateway) -> None:
        async with socket(gateway, key=gateway.key, query=f"?model={MODEL}") as connection:
            for _ in range(limits.REALTIME_RESPONSES_MAX + 17):
                await say(connection, type="response.create", response={"input": [ITEM]})
            assert await close_code(connection) == 4429

    async def test_a_mistake_of_our_own(self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
        async def broken(*_: Any, **__: Any) -> None:
            raise RuntimeError("what nobody outside shall read")

        async with socket(gateway, key=gateway.key, query=f"?model={MODEL}") as connection:
            await event(connection)
            monkeypatch.setattr(Admission, "admit", broken)
            await say(connection, type="response.create", response={"input": [ITEM]}, event_id="mine")
            told = await event(connection)
            assert (told["type"], told["error"]["code"]) == ("error", "internal_error")
            assert told["error"]["event_id"] == "mine"
            assert "shall read" not in str(told)
            assert await close_code(connection) == 4500

    async def test_a_server_that_restarts(self, gateway: Gateway, valkey_url: str) -> None:
        mailbox = Mailbox(channel=mailbox_channel("gw-old"), listen=Subscriber(valkey_url).listen)
        services = replace(gateway.services, gateway_id="gw-old", mailbox=mailbox)
        async with AsyncExitStack() as client:
            async with serving(services) as url:
                connection = await client.enter_async_context(socket(replace(gateway, url=url), key=gateway.key))
                assert (await event(connection))["type"] == "session.created"
            assert await close_code(connection) == 1012

    async def test_t25_a_browser_of_another_origin(self, gateway: Gateway) -> None:
        async with socket(gateway, key=gateway.key, origin="https://evil.example") as connection:
            assert await close_code(connection) == 4403

    async def test_a_browser_of_an_origin_that_is_let_in_is_answered(self, gateway: Gateway) -> None:
        async with socket(gateway, key=gateway.key, origin="https://console.example") as connection:
            assert (await event(connection))["type"] == "session.created"


class TestMuteClient:
    @pytest.fixture
    def settings(self) -> GatewaySettings:
        return GatewaySettings(worker_probe_seconds=0.0, realtime_auth_seconds=0.1)

    async def test_is_closed(self, gateway: Gateway) -> None:
        async with socket(gateway) as connection:
            assert await close_code(connection) == 4408


class TestIdleClient:
    @pytest.fixture
    def settings(self) -> GatewaySettings:
        return GatewaySettings(worker_probe_seconds=0.0, realtime_auth_seconds=0.05, realtime_idle_seconds=0.2)

    async def test_is_closed(self, gateway: Gateway) -> None:
        async with socket(gateway, key=gateway.key) as connection:
            assert await close_code(connection) == 4408

    async def test_is_not_idle_while_its_response_runs(self, gateway: Gateway) -> None:
        async with socket(gateway, key=gateway.key, query=f"?model={MODEL}") as connection:
            await event(connection)
            await say(connection, type="response.create", response={"input": [ITEM]})
            claim = await gateway.worker.claim()
            await asyncio.sleep(0.5)
            await gateway.worker.end(claim, last_seq=0)
            assert [(await event(connection))["type"] for _ in range(2)] == ["response.created", "response.done"]
            assert await close_code(connection) == 4408


class TestRateLimits:
    """What the rate headers say over HTTP."""

    async def test_come_at_the_start_with_each_response_and_with_its_refusal(self, gateway: Gateway) -> None:
        limits = (
            Limit(scope=Scope.KEY, metric=Metric.REQUESTS_PER_MINUTE, cap=9),
            Limit(scope=Scope.KEY, metric=Metric.REQUESTS_PER_MINUTE, cap=1, model=MODEL),
        )
        key = gateway.directory.issue(replace(CONTEXT, api_key_id="k9", limits=limits))
        async with socket(gateway, key=key, query=f"?model={MODEL}") as connection:
            seen = [await event(connection)]
            await say(connection, type="response.create", response={"input": [ITEM]})
            await gateway.worker.serve(["a"])
            seen += [await event(connection) for _ in range(3)]
            await say(connection, type="response.create", response={"input": [ITEM]})
            seen += [await event(connection)]
        told = {e["type"]: e["rate_limits"] for e in seen if "rate_limits" in e}
        assert [(kind, room[0]["limit"], room[0]["remaining"]) for kind, room in told.items()] == [
            ("session.created", 1, 1), ("response.created", 1, 0), ("response.done", 1, 0), ("error", 1, 0),
        ]  # fmt: skip
        assert {room[0]["name"] for room in told.values()} == {"requests"}
        assert all(0 <= room[0]["reset_seconds"] <= 60 for room in told.values())

    async def test_are_empty_where_nothing_is_limited(self, gateway: Gateway) -> None:
        async with socket(gateway, key=gateway.key) as connection:
            assert (await event(connection))["rate_limits"] == []


class TestSlowReader:
    @pytest.fixture
    def settings(self) -> GatewaySettings:
        return GatewaySettings(worker_probe_seconds=0.0, send_stall_seconds=0.2)

    async def test_is_given_up_and_its_response_cancelled(self, gateway: Gateway) -> None:
        async with socket(gateway, key=gateway.key, query=f"?model={MODEL}") as connection:
            await event(connection)
            await say(connection, type="response.create", response={"input": [ITEM]})
            await event(connection)
            connection.transport.pause_reading()
            claim = await gateway.worker.claim()
            frames = chat_frames(claim.ticket, ["x" * 200_000] * 60)
            aborts: list[Abort] = []
            for seq, frame in enumerate(frames, start=1):
                aborts = aborts or await gateway.worker.step(claim, [frame], first_seq=seq)
            assert [abort.reason for abort in aborts or [await gateway.worker.aborted(claim)]] == [
                AbortReason.CANCELLED
            ]
            connection.transport.abort()


async def pieces(connection: ClientConnection, first: bytes, piece: bytes, count: int, last: bytes) -> None:
    """One text message in `count` + 2 frames, each masked by zeros."""

    def frame(head: int, data: bytes) -> bytes:
        return bytes([head, 0x80 | len(data)]) + bytes(4) + data

    connection.transport.write(frame(0x01, first) + frame(0x00, piece) * count + frame(0x80, last))
