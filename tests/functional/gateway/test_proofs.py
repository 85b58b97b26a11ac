"""Receipts, their public keys, and costs in OpenAI's shape."""

from decimal import Decimal
from typing import Any

import pytest

from gateway.services import Receipts
from tests.functional.gateway.cast import CONTEXT
from tests.functional.gateway.conftest import Gateway

SIGNED = {"receipt": {"request_id": "r"}, "key_id": "k", "signature": "00"}


class Settler:
    """Has signed one receipt, of acme."""

    async def receipt(self, *, request_id: str, tenant_id: str) -> dict[str, Any] | None:
        return SIGNED if (request_id, tenant_id) == ("r", CONTEXT.tenant_id) else None

    async def keys(self) -> dict[str, bytes]:
        return {"new": b"\x01" * 32, "old": b"\x02" * 32}


@pytest.fixture
def receipts() -> Receipts | None:
    return Settler()


class TestReceipts:
    async def test_are_given_to_the_tenant_of_the_request_alone(self, gateway: Gateway) -> None:
        mine = await gateway.http.get("/v1/requests/r/receipt", headers=gateway.auth())
        assert (mine.status_code, mine.json()) == (200, SIGNED)
        foreign = await gateway.http.get("/v1/requests/r/receipt", headers=gateway.auth(gateway.mallory))
        unknown = await gateway.http.get("/v1/requests/x/receipt", headers=gateway.auth(gateway.mallory))
        assert foreign.status_code == unknown.status_code == 404
        assert foreign.json() == unknown.json()
        error = unknown.json()["error"]
        assert (error["param"], error["code"]) == ("path", "request_not_found")
        assert (await gateway.http.get("/v1/requests/r/receipt")).status_code == 401

    async def test_have_public_keys_that_anybody_may_read(self, gateway: Gateway) -> None:
        answer = await gateway.http.get("/v1/receipt-keys")
        assert [(key["key_id"], key["public_key"]) for key in answer.json()["data"]] == [
            ("new", "01" * 32),
            ("old", "02" * 32),
        ]


class TestCosts:
    async def test_have_openais_shape_and_exact_amounts(self, gateway: Gateway) -> None:
        query = "start_time=1800000000&group_by[]=line_item&group_by=project_id&limit=180"
        answer = await gateway.http.get(f"/v1/organization/costs?{query}", headers=gateway.auth())
        result = answer.json(parse_float=Decimal)["data"][0]["results"][0]
        assert result == {
            "object": "organization.costs.result",
            "amount": {"value": Decimal("0.0000164"), "currency": "usd"},
            "line_item": None,
            "project_id": "acme-project",
        }
        asked = gateway.directory.asked[0]
        assert (asked.group_by, asked.limit, asked.bucket_width) == (("model", "project_id"), 31, "1d")

    @pytest.mark.parametrize(
        ("query", "param"),
        [
            ("", "start_time"),
            ("start_time=1&bucket_width=1h", "bucket_width"),
            ("start_time=1&group_by=model", "group_by"),
            ("start_time=1&group_by=", "group_by"),
            ("start_time=1&limit=181", "limit"),
            ("start_time=1&limit=0", "limit"),
            ("start_time=1&models=x", "models"),
        ],
    )
    async def test_a_wrong_parameter_is_400(self, gateway: Gateway, query: str, param: str) -> None:
        answer = await gateway.http.get(f"/v1/organization/costs?{query}", headers=gateway.auth())
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


class TestUsageUnderOpenaisPath:
    async def test_is_the_same(self, gateway: Gateway) -> None:
        query = "start_time=1800000000&end_time=1800086400"
        ours = await gateway.http.get(f"/v1/usage?{query}", headers=gateway.auth())
        theirs = await gateway.http.get(f"/v1/organization/usage/completions?{query}", headers=gateway.auth())
        assert ours.json() == theirs.json()
