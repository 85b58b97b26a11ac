"""Query strings: a parameter that a path does not read is refused everywhere on /v1 alike, by its name."""

import asyncio

import pytest

from tests.functional.gateway.cast import MODEL
from tests.functional.gateway.conftest import Gateway


class TestParameters:
    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("GET", "/v1/models"),
            ("HEAD", "/v1/models"),
            ("GET", f"/v1/models/{MODEL}"),
            ("GET", "/v1/usage"),
            ("GET", "/v1/organization/usage/completions"),
            ("GET", "/v1/organization/costs"),
            ("GET", "/v1/receipt-keys"),
            ("GET", "/v1/openapi.json"),
            ("GET", "/v1/requests/x"),
            ("GET", "/v1/requests/x/receipt"),
            ("GET", "/v1/requests/x/events"),
            ("POST", "/v1/requests/x/cancel"),
            ("POST", "/v1/chat/completions"),
            ("POST", "/v1/completions"),
            ("POST", "/v1/moderations"),
        ],
    )
    async def test_a_query_parameter_that_a_path_does_not_read_is_refused_by_its_name(
        self, gateway: Gateway, method: str, path: str
    ) -> None:
        for query, param in (("x=1", "x"), ("x", "x"), ("api-version=1&y[]=1", "y"), ("=1", "query")):
            answer = await gateway.http.request(method, f"{path}?{query}", headers=gateway.auth())
            assert answer.status_code == 400, (method, path, query)
            if method != "HEAD":
                error = answer.json()["error"]
                assert (error["param"], error["code"]) == (param, "unknown_parameter")

    async def test_the_query_parameter_of_clients_set_up_for_azure_means_nothing(self, gateway: Gateway) -> None:
        client = gateway.sdk.with_options(default_query={"api-version": "2026-01-01"})
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(gateway.worker.serve(["x"]))
            answer = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hi"}])
        assert answer.choices[0].message.content == "x"
        assert [model.id async for model in client.models.list()] == [MODEL]

    async def test_a_stranger_s_query_is_not_judged(self, gateway: Gateway) -> None:
        answer = await gateway.http.get("/v1/models?api_key=x")
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "missing_api_key")
