"""GET /v1/models, /v1/usage, /v1/requests of the past, and health."""

from dataclasses import asdict, replace

import pytest
from jsonschema import Draft202012Validator

from billing.clickhouse.shapes import RequestRow, TimelineStep
from gateway.surface.openapi import document as openapi
from tests.functional.gateway.cast import CARD, CONTEXT, MODEL
from tests.functional.gateway.conftest import Gateway


class TestModels:
    async def test_the_sdk_lists_and_shows_the_exact_configuration(self, gateway: Gateway) -> None:
        listed = [model async for model in gateway.sdk.models.list()]
        shown = await gateway.sdk.models.retrieve(MODEL)
        assert [model.id for model in listed] == [MODEL]
        assert shown.model_dump() == {
            "id": MODEL, "object": "model", "created": 1_800_000_000, "owned_by": "weir", **asdict(CARD),
        }  # fmt: skip

    async def test_a_key_sees_only_what_it_may_use(self, gateway: Gateway) -> None:
        key = gateway.directory.issue(replace(CONTEXT, api_key_id="k2", allowed_models=frozenset({"other"})))
        listed = await gateway.http.get("/v1/models", headers=gateway.auth(key))
        shown = await gateway.http.get(f"/v1/models/{MODEL}", headers=gateway.auth(key))
        assert listed.json() == {"object": "list", "data": []}
        assert (shown.status_code, shown.json()["error"]["code"]) == (404, "model_not_found")

    async def test_needs_a_key(self, gateway: Gateway) -> None:
        assert (await gateway.http.get("/v1/models")).status_code == 401


class TestUsage:
    async def test_has_openais_shape_and_the_callers_tenant(self, gateway: Gateway) -> None:
        query = (
            "start_time=1800000000&end_time=1800086400&bucket_width=1h&group_by[]=model&group_by[]=project_id&limit=5"
        )
        answer = await gateway.http.get(f"/v1/usage?{query}", headers=gateway.auth())
        page = answer.json()
        result = page["data"][0]["results"][0]
        assert (page["object"], page["has_more"], page["data"][0]["start_time"]) == ("page", False, 1_800_000_000)
        assert (result["project_id"], result["input_cached_tokens"], result["cost"]) == ("acme-project", 4, "0.0000164")
        asked = gateway.directory.asked[0]
        assert (asked.start_ms, asked.end_ms, asked.bucket_width) == (1_800_000_000_000, 1_800_086_400_000, "1h")
        assert (asked.group_by, asked.limit) == (("model", "project_id"), 5)

    @pytest.mark.parametrize(
        ("query", "param"),
        [
            ("", "start_time"),
            ("start_time=yesterday", "start_time"),
            ("start_time=-1", "start_time"),
            ("start_time=" + "9" * 30, "start_time"),
            ("start_time=1&start_time=2", "start_time"),
            ("start_time=1&bucket_width=1y", "bucket_width"),
            ("start_time=1&bucket_width=", "bucket_width"),
            ("start_time=1&models=", "models"),
            ("start_time=1&group_by=model,", "group_by"),
            ("start_time=1&frobnicate=1", "frobnicate"),
            ("start_time=1&models=" + ",".join("abc" for _ in range(101)), "models"),
        ],
    )
    async def test_a_wrong_parameter_is_400(self, gateway: Gateway, query: str, param: str) -> None:
        answer = await gateway.http.get(f"/v1/usage?{query}", headers=gateway.auth())
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


class TestPastRequests:
    async def test_are_told_from_their_metered_rows(self, gateway: Gateway) -> None:
        row = RequestRow(
            request_id="r-1", revision=1, tenant_id="acme", project_id="p", api_key_id="k", model=MODEL, pool="x",
            endpoint="chat/completions", service_class="interactive", stream=True, admitted_at_ms=1_800_000_000_000,
            billed_at_ms=1_800_000_001_000, prompt_tokens=10, cached_tokens=4, completion_tokens=5, reasoning_tokens=0,
            delivered_tokens=5, ttft_ms=20.0, itl_ms=5.0, total_ms=50.0, outcome="ok", finish_reason="stop",
            error_code="", attempt=1, worker_id="w1", price_card_id="pc", currency="USD", cost_nano=16_400, log_key="",
            timeline=(
                TimelineStep(
                    step="GUARDRAIL", duration_us=35,
                    detail="policy 7 v1; stage=prompt rule=project-zeus action=redact state=ran hits=2 acted=yes us=35",
                ),
                TimelineStep(step="QUEUE", duration_us=1_500, detail="pool x"),
                TimelineStep(step="WORKER", duration_us=5, detail="w1, attempt 1"),
            ),
        )  # fmt: skip
        gateway.directory.rows["acme", "r-1"] = row
        answer = (await gateway.http.get("/v1/requests/r-1", headers=gateway.auth())).json()
        assert (answer["status"], answer["outcome"], answer["usage"]["cost"]) == ("ended", "ok", "0.0000164")
        assert answer["timeline"] == [
            {"step": "GUARDRAIL", "duration_us": 35, "detail": ""},
            {"step": "QUEUE", "duration_us": 1_500, "detail": "pool x"},
            {"step": "WORKER", "duration_us": 5, "detail": ""},
        ]
        assert answer["verdicts"] == [{"stage": "prompt", "action": "redact", "matches": 2}]
        as_streamed = await gateway.http.get("/v1/requests/chatcmpl-r-1", headers=gateway.auth())
        assert as_streamed.json() == answer
        assert "stopped_by" not in answer
        gateway.directory.rows["acme", "r-2"] = replace(row, finish_reason="length", budget_cut=True)
        cut = (await gateway.http.get("/v1/requests/r-2", headers=gateway.auth())).json()
        assert (cut["finish_reason"], cut["stopped_by"]) == ("length", "budget")
        schema = {"$ref": "#/components/schemas/Request", "components": openapi()["components"]}
        Draft202012Validator(schema).validate(cut)
        gone = await gateway.http.get("/v1/requests/r-1/events", headers=gateway.auth())
        ended = await gateway.http.post("/v1/requests/r-1/cancel", headers=gateway.auth())
        other = await gateway.http.get("/v1/requests/r-1", headers=gateway.auth(gateway.mallory))
        assert (gone.status_code, ended.json()["result"], other.status_code) == (410, "already_ended", 404)


class TestHealth:
    async def test_is_live_and_ready(self, gateway: Gateway) -> None:
        assert (await gateway.http.get("/health/live")).json() == {"status": "live"}
        assert (await gateway.http.get("/health/ready/")).json() == {"status": "ready"}

    async def test_is_not_ready_without_its_subscription(self, gateway: Gateway) -> None:
        gateway.services.mailbox.subscribed.clear()
        answer = await gateway.http.get("/health/ready")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
