"""GET /v1/models, /v1/models/{id} and /v1/usage. Step 1; called by `app.py`."""

from dataclasses import asdict
from typing import Any

from billing.clickhouse.usage import wrong_limit
from contracts.errors import InvalidRequest, NotFound
from contracts.models import ModelCard
from contracts.tenancy import TenantContext
from contracts.text import shown
from gateway.admission import Admission
from gateway.edge.callers import identified
from gateway.edge.exchange import Exchange
from gateway.services import GatewayServices, UsageQuery
from gateway.surface import limits

_LISTS = {"group_by": "group_by", "models": "models", "project_ids": "project_ids", "api_key_ids": "api_key_ids"}
USAGE_QUERY = frozenset({"start_time", "end_time", "bucket_width", "limit", "page", *_LISTS})
_SECONDS_MAX = 253_402_300_799  # the end of the year 9999
_MODEL_MAX = limits.MODEL_NAME_MAX


async def list_models(exchange: Exchange, *, services: GatewayServices, admission: Admission) -> None:
    """The models that this key may use."""
    caller = await identified(exchange, admission)
    served = await services.catalogue.list()
    cards = [model.card for model in served if _may_use(caller.context, model.card.model)]
    await exchange.json(200, {"object": "list", "data": [_brief(card) for card in cards]})


async def show_model(exchange: Exchange, name: str, *, services: GatewayServices, admission: Admission) -> None:
    """The exact configuration on record. A model that the key may not use is not there."""
    caller = await identified(exchange, admission, model=name)
    if not _may_use(caller.context, name) or len(name) > _MODEL_MAX:
        raise NotFound(f"no model {shown(name)}", param="model", code="model_not_found")
    card = (await services.catalogue.get(name)).card
    if not _may_use(caller.context, card.model):
        raise NotFound(f"no model {shown(name)}", param="model", code="model_not_found")
    await exchange.json(200, _brief(card) | asdict(card))


async def show_usage(exchange: Exchange, *, services: GatewayServices, admission: Admission) -> None:
    """The tenant's own usage in time buckets, in OpenAI's shape."""
    caller = await identified(exchange, admission, query=USAGE_QUERY)
    query = read_query(exchange.query(), now_ms=services.clock.now_ms())
    page = await services.usage.buckets(tenant_id=caller.context.tenant_id, query=query)
    await exchange.json(200, page.as_json())


def _may_use(context: TenantContext, model: str) -> bool:
    return context.allowed_models is None or model in context.allowed_models


def _brief(card: ModelCard) -> dict[str, Any]:
    return {"id": card.model, "object": "model", "created": card.created_at_ms // 1000, "owned_by": "weir"}


def read_query(given: dict[str, list[str]], *, now_ms: int) -> UsageQuery:
    """The parameters of a usage report, all of USAGE_QUERY. Raises InvalidRequest naming the parameter."""
    start_s = _integer(given, "start_time", most=_SECONDS_MAX)
    if start_s is None:
        raise InvalidRequest("start_time: is missing (Unix seconds)", param="start_time", code="missing_field")
    end_s = _integer(given, "end_time", most=_SECONDS_MAX)
    bucket_width = _one(given, "bucket_width")
    bucket_width = "1d" if bucket_width is None else bucket_width
    lists = {field: read_list(given, name) for name, field in _LISTS.items()}
    return UsageQuery(
        start_ms=start_s * 1000,
        end_ms=now_ms if end_s is None else end_s * 1000,
        bucket_width=bucket_width,
        limit=_limit(given, bucket_width),
        page=_one(given, "page"),
        **lists,
    )


def _one(given: dict[str, list[str]], name: str) -> str | None:
    values = given.get(name)
    if values is None:
        return None
    if len(values) != 1:
        raise InvalidRequest(f"{name}: must be given once", param=name)
    return values[0]


def _integer(given: dict[str, list[str]], name: str, *, most: int) -> int | None:
    value = _one(given, name)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit()) or len(value) > 15 or int(value) > most:
        raise InvalidRequest(f"{name}: must be an integer between 0 and {most}", param=name)
    return int(value)


def _limit(given: dict[str, list[str]], bucket_width: str) -> int | None:
    """A whole number; its range is the bucket width's, and so are the words for what is none."""
    value = _one(given, "limit")
    if value is None:
        return None
    if not (value.isascii() and value.isdigit()) or len(value) > 9:
        raise wrong_limit(bucket_width)
    return int(value)


def read_list(given: dict[str, list[str]], name: str) -> tuple[str, ...]:
    """A list, given once with commas or several times. One that names nothing is none: it would ask for everything."""
    values = [part for value in given.get(name, []) for part in value.split(",")]
    if "" in values:
        raise InvalidRequest(f"{name}: a value must not be empty", param=name)
    if len(values) > limits.QUERY_VALUES_MAX:
        raise InvalidRequest(f"{name}: at most {limits.QUERY_VALUES_MAX} values", param=name)
    return tuple(values)
