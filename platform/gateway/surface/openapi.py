"""The inference API as an OpenAPI 3.1 document, made from the tables that judge it. Step 1; served by `edge/app.py`.

Invariants: request fields, bounds and reasons come from `schema.py` alone, so the document cannot say what is not
checked; every answer of these routes obeys it (tests ask for what it allows and hold the answers against it).
"""

from typing import Any

from contracts.jobs import Endpoint
from gateway.surface import limits
from gateway.surface.answers import ANSWERS
from gateway.surface.fields import Schema, or_null
from gateway.surface.moderations import REQUEST as MODERATION
from gateway.surface.schema import fields_of, required_of

VERSION = "3.1.0"
_ABOUT = (
    "OpenAI's chat completions and completions, with what they say of models, usage and single requests. "
    "Every field that is not accepted is refused with its name in `param`. `GET /v1/realtime` is a WebSocket, which "
    "OpenAPI has no words for. The management API is described at [/api/docs/](/api/docs/)."
)
_KEPT = (
    "Live from its queue, later from the metered rows; a refused one with its error, for a week, the tenant's last "
    "thousand. One of a time when Redis was away is here a few seconds after Redis is back, or not at all where "
    "its gateway ended before."
)
_REQUESTS = {Endpoint.CHAT: "ChatCompletionRequest", Endpoint.COMPLETIONS: "CompletionRequest"}
_WHOLE = {Endpoint.CHAT: "ChatCompletion", Endpoint.COMPLETIONS: "Completion"}
_CHUNK = {Endpoint.CHAT: "ChatCompletionChunk", Endpoint.COMPLETIONS: "CompletionChunk"}
_ERROR = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
_INTEGER_TEXT = {"type": "integer", "minimum": 0}
_LIST = {"type": "array", "items": {"type": "string"}, "maxItems": limits.QUERY_VALUES_MAX}


def document() -> dict[str, Any]:
    """The whole document, new at each call."""
    return {
        "openapi": VERSION,
        "info": {"title": "Weir inference API", "version": "1", "description": _ABOUT},
        "security": [{"key": []}],
        "paths": {
            "/v1/chat/completions": {"post": _completion(Endpoint.CHAT, "Answer a chat")},
            "/v1/completions": {"post": _completion(Endpoint.COMPLETIONS, "Continue a text")},
            "/v1/moderations": {"post": _moderation()},
            "/v1/models": {"get": _read("listModels", "The models that this key may use", "ModelList")},
            "/v1/models/{model}": {
                "get": _read("showModel", "A model's exact configuration on record", "Model", _in_path("model"))
            },
            "/v1/usage": {"get": _read("showUsage", "The tenant's own usage in time buckets", "UsagePage", *_usage())},
            "/v1/organization/usage/completions": {
                "get": _read("showUsageOfCompletions", "The same under OpenAI's path", "UsagePage", *_usage())
            },
            "/v1/organization/costs": {
                "get": _read("showCosts", "The tenant's own costs by day, in OpenAI's shape", "CostPage", *_costs())
            },
            "/v1/receipt-keys": {
                "get": _read("listReceiptKeys", "Public keys that receipts are checked with", "ReceiptKeyList")
                | {"security": []}
            },
            "/v1/requests/{request_id}/receipt": {
                "get": _read("showReceipt", "A request's signed receipt", "SignedReceipt", _in_path("request_id"))
            },
            "/v1/requests/{request_id}": {
                "get": _read("showRequest", "Where a request stands", "AnyRequest", _in_path("request_id"))
                | {"description": _KEPT}
            },
            "/v1/requests/{request_id}/cancel": {
                "post": _read("cancelRequest", "Stop a request", "Cancelled", _in_path("request_id"))
            },
            "/v1/requests/{request_id}/events": {"get": _events()},
        },
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "An API key: `weir_…`"}},
            "schemas": ANSWERS
            | {name: _request(endpoint) for endpoint, name in _REQUESTS.items()}
            | {"ModerationRequest": MODERATION},
        },
    }


def _request(endpoint: Endpoint) -> Schema:
    required = required_of(endpoint)
    properties = {
        name: check.schema if name in required or check.schema.get("type") == "null" else or_null(check.schema)
        for name, check in fields_of(endpoint).items()
    }
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}


def _completion(endpoint: Endpoint, summary: str) -> dict[str, Any]:
    name = _REQUESTS[endpoint]
    stream = f"Events of {_CHUNK[endpoint]}, then `[DONE]`; or an Error, and no `[DONE]`."
    return {
        "operationId": f"create{_WHOLE[endpoint]}",
        "summary": summary,
        "parameters": [
            {
                "name": "Idempotency-Key",
                "in": "header",
                "description": "A repeat gets the answer of the first request. Printable ASCII.",
                "schema": {"type": "string", "pattern": f"^[!-~]{{1,{limits.IDEMPOTENCY_KEY_MAX}}}$"},
            }
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": _named(name)}}},
        "responses": _responses(
            {
                "application/json": {"schema": _named(_WHOLE[endpoint])},
                "text/event-stream": {"schema": {"description": stream}},
            }
        )
        | {
            "202": {
                "description": "Accepted with `background: true`; ask for it at `location`, from any connection",
                "content": {"application/json": {"schema": _named("Request")}},
            },
            "402": {"description": "A budget is spent, and waiting alone does not help", **_ERROR},
            "429": {"description": "A limit is reached, or requests under way hold the money that is left", **_ERROR},
        },
    }


def _read(operation: str, summary: str, answer: str, *parameters: dict[str, Any]) -> dict[str, Any]:
    return {
        "operationId": operation,
        "summary": summary,
        "parameters": [*parameters],
        "responses": _responses({"application/json": {"schema": _named(answer)}}),
    }


def _moderation() -> dict[str, Any]:
    about = (
        "Judged by the rules for prompts of your guardrail policy. A category is a kind of rule that the policy has "
        "(`pii`, `secrets`, `ban_list`, …); what it has no rule for is not judged and not named. A score is 0 or 1. "
        "Counts as one request in your limits, and costs nothing."
    )
    body = {"application/json": {"schema": _named("ModerationRequest")}}
    return {
        **_read("createModeration", "Judge texts by your own guardrails", "Moderation"),
        "description": about,
        "requestBody": {"required": True, "content": body},
    }


def _events() -> dict[str, Any]:
    event = {"type": "string", "pattern": "^([0-9]{1,9}|[0-9]+-[A-Za-z0-9-]+-[0-9]{1,9})?$"}
    about = "The id of the last event that the client has, or its number."
    return {
        "operationId": "resumeEvents",
        "summary": "A request's events after one of them, then what follows live; leaving cancels nothing",
        "parameters": [
            _in_path("request_id"),
            {"name": "starting_after", "in": "query", "description": about, "schema": event},
            {"name": "Last-Event-ID", "in": "header", "description": about, "schema": event},
        ],
        "responses": _responses({"text/event-stream": {"schema": {"description": "As the request's own stream."}}}),
    }


def _usage() -> list[dict[str, Any]]:
    widths = {"enum": ["1m", "1h", "1d"], "default": "1d"}
    groups = {"type": "array", "items": {"enum": ["model", "project_id", "api_key_id"]}}
    return [
        _in_query("start_time", _INTEGER_TEXT, "Unix seconds, rounded down to a bucket", required=True),
        _in_query("end_time", _INTEGER_TEXT, "Unix seconds; now where absent"),
        _in_query("bucket_width", widths, "How long one bucket is"),
        _in_query("limit", {"type": "integer", "minimum": 1}, "Buckets of one page; how many depends on their width"),
        _in_query("page", {"type": "string"}, "`next_page` of the page before"),
        _in_query("group_by", groups, "What results of a bucket are kept apart by"),
        *(_in_query(name, _LIST, "Only these") for name in ("models", "project_ids", "api_key_ids")),
    ]


def _costs() -> list[dict[str, Any]]:
    groups = {"type": "array", "items": {"enum": ["project_id", "line_item"]}}
    return [
        _in_query("start_time", _INTEGER_TEXT, "Unix seconds", required=True),
        _in_query("end_time", _INTEGER_TEXT, "Unix seconds; now where absent"),
        _in_query("bucket_width", {"enum": ["1d"], "default": "1d"}, "How long one bucket is"),
        _in_query("limit", {"type": "integer", "minimum": 1, "maximum": 180}, "Days of one page, 31 at most"),
        _in_query("page", {"type": "string"}, "`next_page` of the page before"),
        _in_query("group_by", groups, "What results of a day are kept apart by; a line item is a model"),
        _in_query("project_ids", _LIST, "Only these"),
    ]


def _responses(content: dict[str, Any]) -> dict[str, Any]:
    return {
        "200": {"description": "Done", "content": content},
        "4XX": {"description": "Something in the request is wrong, or a limit or budget is spent", **_ERROR},
        "5XX": {"description": "Something on our side is wrong; `retry-after` says when to ask again", **_ERROR},
    }


def _named(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _in_query(name: str, schema: Schema, about: str, *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": required, "description": about, "schema": schema}
