"""GET /v1/requests/{id}/receipt, /v1/receipt-keys and /v1/organization/costs: what the bill is made of. Steps 1, 8, 9.

Called by `app.py`. Invariants: a gateway signs nothing, it asks the settler; another tenant's request and one that
never was answer alike (404); an amount is a JSON number of exact decimal digits, never a float.
"""

from typing import Any

import orjson

from billing.clickhouse.shapes import UsagePage, UsageResult
from contracts.errors import InvalidRequest, NotFound, Unavailable
from contracts.money import text_from_nano
from gateway.admission import Admission
from gateway.edge.callers import identified
from gateway.edge.exchange import Exchange
from gateway.edge.reports import USAGE_QUERY, read_list, read_query
from gateway.services import GatewayServices, UsageQuery
from gateway.surface import limits

KEYS_SECONDS = b"300"
_COSTS_QUERY = USAGE_QUERY - {"models", "api_key_ids"}
_GROUPS = {"project_id": "project_id", "line_item": "model"}


async def show_receipt(exchange: Exchange, request_id: str, *, services: GatewayServices, admission: Admission) -> None:
    """The signed receipt of a request that ended and was metered, a second or two after its end."""
    caller = await identified(exchange, admission)
    if services.receipts is None:
        raise Unavailable("receipts are not given here")
    found = await services.receipts.receipt(request_id=request_id, tenant_id=caller.context.tenant_id)
    if found is None:
        raise NotFound("no such request, or it has not ended and been metered yet", code="request_not_found")
    await exchange.json(200, found)


async def show_receipt_keys(exchange: Exchange, *, services: GatewayServices, admission: Admission) -> None:
    """The public keys that receipts and invoices are checked with, the one that signs now first. It needs no key."""
    exchange.require_query()
    if services.receipts is None:
        raise Unavailable("receipts are not given here")
    keys = await services.receipts.keys()
    listed = [{"key_id": key_id, "algorithm": "Ed25519", "public_key": key.hex()} for key_id, key in keys.items()]
    headers = [(b"cache-control", b"public, max-age=" + KEYS_SECONDS)]
    await exchange.json(200, {"object": "list", "data": listed}, headers=headers)


async def show_costs(exchange: Exchange, *, services: GatewayServices, admission: Admission) -> None:
    """The tenant's own costs by day, in OpenAI's shape."""
    caller = await identified(exchange, admission, query=_COSTS_QUERY)
    page = await services.usage.buckets(
        tenant_id=caller.context.tenant_id,
        query=_costs_query(exchange.query(), now_ms=services.clock.now_ms()),
    )
    await exchange.json(200, _cost_page(page))


def _costs_query(given: dict[str, list[str]], *, now_ms: int) -> UsageQuery:
    asked = dict(given)
    groups = read_list(asked, "group_by")
    if set(groups) - _GROUPS.keys():
        raise InvalidRequest(f"group_by names {' or '.join(_GROUPS)}", param="group_by")
    if asked.get("bucket_width", ["1d"]) != ["1d"]:
        raise InvalidRequest("costs are by day: bucket_width is 1d", param="bucket_width")
    limit = asked.get("limit", [])
    if len(limit) == 1 and limit[0].isascii() and limit[0].isdigit() and len(limit[0]) < 9:
        if not 1 <= int(limit[0]) <= limits.COST_DAYS_MAX:
            raise InvalidRequest(f"limit is a whole number from 1 to {limits.COST_DAYS_MAX}", param="limit")
        asked["limit"] = [str(min(int(limit[0]), limits.USAGE_PAGE_DAYS_MAX))]
    if groups:
        asked["group_by"] = [_GROUPS[name] for name in groups]
    return read_query(asked, now_ms=now_ms)


def _cost_page(page: UsagePage) -> dict[str, Any]:
    return {
        "object": "page",
        "data": [
            {
                "object": "bucket",
                "start_time": bucket.start_s,
                "end_time": bucket.end_s,
                "results": [_cost(result) for result in bucket.results],
            }
            for bucket in page.buckets
        ],
        "has_more": page.next_page is not None,
        "next_page": page.next_page,
    }


def _cost(result: UsageResult) -> dict[str, Any]:
    return {
        "object": "organization.costs.result",
        "amount": {
            "value": orjson.Fragment(text_from_nano(result.cost_nano)),
            "currency": result.currency.lower(),
        },
        "line_item": result.model,
        "project_id": result.project_id,
    }
