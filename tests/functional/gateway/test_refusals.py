"""Refused requests leave a trace that an operator finds by the request's id, and nothing else."""

import asyncio
from dataclasses import replace

import pytest
from redis.asyncio import Redis

from contracts.clock import FakeClock
from contracts.errors import InvalidRequest, Unavailable
from contracts.tenancy import Limit, Metric, Scope
from gateway.refusals import ENTRIES_MAX, KEPT_MS, LATEST_MS, WAITING_MAX, WRITES_MAX, Refusals
from stores.system import SystemClock, mint_request_id
from tests.functional.gateway.cast import CONTEXT, MODEL
from tests.functional.gateway.conftest import Gateway
from tests.functional.gateway.sockets import ITEM, event, say, socket

BODY = {"model": MODEL, "messages": [{"role": "user", "content": "a prompt that stays private"}]}


@pytest.fixture
def refusals(gateway: Gateway) -> Refusals:
    return Refusals(gateway.services.redis, clock=gateway.services.clock)


def clock_of_now() -> FakeClock:
    """It stands still at the store's time, by which entries are named."""
    return FakeClock(wall_ms=SystemClock().now_ms())


async def seen(gateway: Gateway, tenant: str = "acme") -> list[bytes]:
    """The raw entries, once the note of an answer that has just arrived is written."""
    key = f"w:{{t:{tenant}}}:refused" if tenant else "w:refused"
    async with asyncio.timeout(5):
        while not (entries := await gateway.services.redis.xrange(key)):  # noqa: ASYNC110 - written after the answer
            await asyncio.sleep(0)
    return [fields[b"d"] for _, fields in entries]


async def seen_by_nobody(gateway: Gateway) -> list[bytes]:
    """The raw entries of callers who could not be told apart; there may be none."""
    return [fields[b"d"] for _, fields in await gateway.services.redis.xrange("w:refused")]


class TestEdge:
    async def test_a_limit_s_refusal_is_found_with_what_the_client_was_told(
        self, gateway: Gateway, refusals: Refusals
    ) -> None:
        limits = (Limit(scope=Scope.KEY, metric=Metric.REQUESTS_PER_MINUTE, cap=0),)
        key = gateway.directory.issue(replace(CONTEXT, api_key_id="k2", limits=limits))
        answer = await gateway.http.post("/v1/chat/completions", json=BODY, headers=gateway.auth(key))
        assert answer.status_code == 429
        raw = b"".join(await seen(gateway))
        found = await refusals.find(answer.headers["x-request-id"], tenant_ids=["basic", "acme"])
        assert found is not None
        assert (found.tenant_id, found.api_key_id, found.status, found.code) == (
            "acme",
            "k2",
            429,
            "rate_limit_exceeded",
        )
        assert found.message == answer.json()["error"]["message"]
        assert (found.path, b"private" in raw, key.encode() in raw) == ("/v1/chat/completions", False, False)

    async def test_keeps_no_key_that_was_sent_as_a_word_of_the_request(self, gateway: Gateway) -> None:
        key, chat = gateway.key, "/v1/chat/completions"
        for body in (BODY | {"model": key}, BODY | {key: 1}, BODY | {"messages": [{"role": key, "content": "x"}]}):
            refused = await gateway.http.post(chat, json=body, headers=gateway.auth())
            assert 400 <= refused.status_code < 500
        await gateway.http.get(f"/v1/models/{key}", headers=gateway.auth())
        await gateway.http.post(f"/v1/{key}", json=BODY, headers=gateway.auth())
        last = await gateway.http.post(chat, json=BODY | {"temperature": 9}, headers=gateway.auth())
        async with asyncio.timeout(5):
            while last.headers["x-request-id"].encode() not in (raw := b"".join(await seen(gateway))):  # noqa: ASYNC110
                await asyncio.sleep(0)
        everything = raw + b"".join(await seen_by_nobody(gateway))
        assert key.encode() not in everything
        assert everything.count(b"weir_\xe2\x80\xa6") >= 4

    async def test_its_own_tenant_reads_it_by_its_id_and_nobody_else(self, gateway: Gateway) -> None:
        refused = await gateway.http.post(
            "/v1/chat/completions", json={**BODY, "temperature": 9}, headers=gateway.auth()
        )
        await seen(gateway)
        path = f"/v1/requests/{refused.headers['x-request-id']}"
        shown = await gateway.http.get(path, headers=gateway.auth())
        assert (shown.status_code, shown.json()["status"], shown.json()["http_status"]) == (200, "refused", 400)
        assert shown.json()["error"] == refused.json()["error"]
        ended = await gateway.http.post(f"{path}/cancel", headers=gateway.auth())
        assert (ended.json()["result"], ended.json()["outcome"]) == ("already_ended", "refused")
        assert (await gateway.http.get(f"{path}/events", headers=gateway.auth())).status_code == 410
        for way in ("", "/events"):
            other = await gateway.http.get(path + way, headers=gateway.auth(gateway.mallory))
            assert (other.status_code, other.json()["error"]["code"]) == (404, "request_not_found")

    async def test_is_found_while_the_usage_tables_are_away(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def away(**_: object) -> None:
            raise Unavailable("usage does not answer", retry_after_ms=1000)

        refused = await gateway.http.post(
            "/v1/chat/completions", json={**BODY, "temperature": 9}, headers=gateway.auth()
        )
        await seen(gateway)
        monkeypatch.setattr(gateway.services.usage, "request", away)
        shown = await gateway.http.get(f"/v1/requests/{refused.headers['x-request-id']}", headers=gateway.auth())
        assert (shown.status_code, shown.json()["status"]) == (200, "refused")
        other = await gateway.http.get(f"/v1/requests/{mint_request_id()}", headers=gateway.auth())
        assert other.status_code == 503

    async def test_a_strangers_refusal_is_nobodys(self, gateway: Gateway) -> None:
        refused = await gateway.http.post("/v1/chat/completions", json=BODY, headers=gateway.auth("weir_" + "x" * 38))
        await seen(gateway, "")
        path = f"/v1/requests/{refused.headers['x-request-id']}"
        assert (await gateway.http.get(path, headers=gateway.auth())).status_code == 404

    async def test_a_mistake_in_the_body_is_found(self, gateway: Gateway, refusals: Refusals) -> None:
        answer = await gateway.http.post(
            "/v1/chat/completions", json={**BODY, "temperature": 9}, headers=gateway.auth()
        )
        await seen(gateway)
        found = await refusals.find(answer.headers["x-request-id"], tenant_ids=["acme"])
        assert found is not None
        assert (found.status, found.param) == (400, "temperature")

    async def test_an_unknown_key_is_found_among_the_unknown_callers(
        self, gateway: Gateway, refusals: Refusals
    ) -> None:
        key = "weir_" + "x" * 38
        answer = await gateway.http.post("/v1/chat/completions", json=BODY, headers=gateway.auth(key))
        assert answer.status_code == 401
        raw = b"".join(await seen(gateway, ""))
        found = await refusals.find(answer.headers["x-request-id"], tenant_ids=[])
        assert found is not None
        assert (found.tenant_id, found.code, key.encode() in raw) == ("", "invalid_api_key", False)

    async def test_a_realtime_response_s_refusal_is_found(self, gateway: Gateway, refusals: Refusals) -> None:
        limits = (Limit(scope=Scope.KEY, metric=Metric.REQUESTS_PER_MINUTE, cap=0),)
        key = gateway.directory.issue(replace(CONTEXT, api_key_id="k2", limits=limits))
        async with socket(gateway, key=key) as connection:
            await event(connection)
            await say(connection, type="conversation.item.create", item=ITEM)
            await say(connection, type="response.create", response={"model": MODEL})
            await event(connection)
            told = await event(connection)
        await seen(gateway)
        (found,) = await refusals.latest(tenant_id="acme", limit=10)
        assert (told["type"], found.path, found.message) == ("error", "/v1/realtime", told["error"]["message"])

    async def test_what_is_served_and_what_is_no_path_leave_nothing(self, gateway: Gateway, refusals: Refusals) -> None:
        served = await gateway.http.get("/v1/models", headers=gateway.auth())
        missing = await gateway.http.get("/v1/nothing")
        assert (served.status_code, missing.status_code) == (200, 404)
        assert await refusals.latest(tenant_id="acme", limit=10) == await refusals.latest(tenant_id="", limit=10) == []


class TestRefusals:
    async def test_another_tenant_s_are_not_found_under_mine(self, redis: Redis) -> None:
        clock = clock_of_now()
        refusals, request_id = Refusals(redis, clock=clock), mint_request_id()
        await refusals.note(InvalidRequest("no"), request_id=request_id, path="/v1/x", caller=CONTEXT)
        assert await refusals.find(request_id, tenant_ids=["basic"]) is None
        assert await refusals.find(request_id, tenant_ids=["acme"]) is not None

    async def test_are_bounded_in_number_and_time(self, redis: Redis) -> None:
        refusals = Refusals(redis, clock=clock_of_now())
        for number in range(ENTRIES_MAX + 300):
            await refusals.note(
                InvalidRequest(f"no {number}"), request_id=mint_request_id(), path="/v1/x", caller=CONTEXT
            )
        key = "w:{t:acme}:refused"
        assert ENTRIES_MAX <= await redis.xlen(key) < ENTRIES_MAX + 200
        assert 0 < await redis.pttl(key) <= KEPT_MS
        assert [r.message for r in await refusals.latest(tenant_id="acme", limit=2)] == ["no 1299", "no 1298"]

    async def test_none_outlives_its_week_where_others_follow(self, redis: Redis) -> None:
        clock, key = clock_of_now(), "w:{t:acme}:refused"
        for age_ms in (KEPT_MS + 3_600_000, KEPT_MS - 3_600_000):
            await redis.xadd(key, {b"d": b"{}"}, id=f"{clock.now_ms() - age_ms}-0")
        await Refusals(redis, clock=clock).note(
            InvalidRequest("no"), request_id=mint_request_id(), path="/v1/x", caller=CONTEXT
        )
        oldest, *younger = await redis.xrange(key)
        assert int(oldest[0].split(b"-")[0]) > clock.now_ms() - KEPT_MS
        assert len(younger) == 1

    async def test_a_store_that_is_away_costs_a_request_nothing_but_its_trace(
        self, redis: Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        away = Redis.from_url("redis://127.0.0.1:1/0", socket_connect_timeout=0.2)
        refusals = Refusals(away, clock=clock_of_now())
        async with asyncio.TaskGroup() as tasks:
            for _ in range(WRITES_MAX * 3):
                note = refusals.note(InvalidRequest("no"), request_id=mint_request_id(), path="/v1/x", caller=CONTEXT)
                tasks.create_task(note)
        assert len([r for r in caplog.records if r.name == "weir.gateway.refusals"]) == 1
        await away.aclose()

    async def test_what_a_store_that_was_away_did_not_take_is_written_once_it_is_back(self, redis: Redis) -> None:
        away = Redis.from_url("redis://127.0.0.1:1/0", socket_connect_timeout=0.2)
        clock = clock_of_now()
        refusals = Refusals(away, clock=clock)
        ids = [mint_request_id() for _ in range(3)]
        for request_id in ids:
            await refusals.note(InvalidRequest("no"), request_id=request_id, path="/v1/x", caller=CONTEXT)
        await refusals.write_waiting()
        assert refusals.waiting == 3
        await away.aclose()
        refusals._redis = redis
        await refusals.write_waiting()
        assert refusals.waiting == 0
        assert [r.request_id for r in await refusals.latest(tenant_id="acme", limit=9)] == ids[::-1]
        found = await refusals.find_own(ids[1], tenant_id="acme")
        assert found is not None
        assert found.message == "no"

    async def test_what_waits_is_bounded_in_number_and_time(self, redis: Redis) -> None:
        away = Redis.from_url("redis://127.0.0.1:1/0", socket_connect_timeout=0.2)
        clock = clock_of_now()
        refusals = Refusals(away, clock=clock)
        for number in range(WAITING_MAX + 2):
            note = refusals.note(InvalidRequest(f"no {number}"), request_id="x", path="/v1/x", caller=CONTEXT)
            await note
        assert refusals.waiting == WAITING_MAX
        await away.aclose()
        refusals._redis = redis
        clock.advance(ms=LATEST_MS)
        await refusals.write_waiting()
        assert (refusals.waiting, await refusals.latest(tenant_id="acme", limit=1)) == (0, [])

    @pytest.mark.parametrize("text", ["", "x", "chatcmpl-1", "0" * 33])
    async def test_what_is_no_id_of_ours_is_refused(self, redis: Redis, text: str) -> None:
        with pytest.raises(ValueError, match="UUID"):
            await Refusals(redis, clock=clock_of_now()).find(text, tenant_ids=[])
