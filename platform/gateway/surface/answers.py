"""What the inference routes answer, as JSON schemas. Data; for `openapi.py`.

Invariant: closed only where the platform makes the whole object; what an engine makes may have more fields than these.
"""

from dataclasses import fields
from typing import Any

from contracts.models import ModelCard
from gateway.surface.fields import Schema

_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_MAYBE_TEXT: Schema = {"type": ["string", "null"]}
_TIMINGS: Schema = {"type": "object", "additionalProperties": {"type": ["number", "null"]}}
_CARD_TYPES: dict[Any, Schema] = {str: _TEXT, int: _COUNT, bool: {"type": "boolean"}}


def _closed(properties: dict[str, Schema], *, optional: tuple[str, ...] = ()) -> Schema:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _open(properties: dict[str, Schema], *, optional: tuple[str, ...] = ()) -> Schema:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required}


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def _is(value: str) -> Schema:
    return {"type": "string", "enum": [value]}


def _named(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _whole(kind: str, choice: Schema, *optional: str, **more: Schema) -> Schema:
    head = {"id": _TEXT, "object": _is(kind), "created": _COUNT, "model": _TEXT, "choices": _list(choice)}
    return _open(head | more, optional=optional)


_VERDICT = _closed({"stage": _TEXT, "action": _TEXT, "matches": _COUNT})
_LOGPROBS: Schema = {"type": ["object", "null"]}
_ENDS = {"logprobs": _LOGPROBS, "finish_reason": _MAYBE_TEXT}
_CALL = _open({"id": _MAYBE_TEXT, "type": _TEXT, "function": _open({"name": _TEXT, "arguments": _TEXT})})
_MESSAGE = _open(
    {"role": _TEXT, "content": _MAYBE_TEXT, "refusal": _MAYBE_TEXT, "tool_calls": _list(_CALL)},
    optional=("tool_calls",),
)
_REFUSAL = _open({"message": _TEXT, "type": _TEXT, "param": _MAYBE_TEXT, "code": _TEXT})
_BRIEF: dict[str, Schema] = {"id": _TEXT, "object": _is("model"), "created": _COUNT, "owned_by": _TEXT}
_ENDED = {"usage": _named("Usage"), "weir": _named("Extension")}
_LATER = ("position", "wait_ms", "events", "finish_reason", "timings", "verdicts", "stopped_by", "error", "timeline")
_BACKGROUND = ("background", "response", "kept_until")  # of background requests, while they are kept

_EXTENSION: dict[str, Schema] = {
    "request_id": _TEXT,
    "attempt": _COUNT,
    "timings": _TIMINGS,
    "verdicts": _list(_VERDICT),
    "stopped_by": _is("budget"),
}

_BY_CATEGORY: dict[str, Schema] = {
    "categories": {"type": "boolean"},
    "category_scores": {"type": "number", "minimum": 0, "maximum": 1},
    "category_applied_input_types": _list(_is("text")),
}
_MODERATED = _closed(
    {
        "flagged": {"type": "boolean"},
        **{name: {"type": "object", "additionalProperties": of} for name, of in _BY_CATEGORY.items()},
    }
)

ANSWERS: dict[str, Schema] = {
    "Moderation": _closed({"id": _TEXT, "model": _TEXT, "results": _list(_MODERATED)}),
    "Error": _closed(
        {
            "error": _open(
                {"message": {"type": "string", "minLength": 1}, "type": _TEXT, "param": _MAYBE_TEXT, "code": _TEXT}
            ),
            "usage": _named("Usage"),
            "weir": _open(_EXTENSION, optional=tuple(name for name in _EXTENSION if name != "request_id")),
        },
        optional=("usage", "weir"),
    ),
    "Usage": _closed(
        {
            "prompt_tokens": _COUNT,
            "completion_tokens": _COUNT,
            "total_tokens": _COUNT,
            "prompt_tokens_details": _closed({"cached_tokens": _COUNT}),
            "completion_tokens_details": _closed({"reasoning_tokens": _COUNT}),
            "cost": {"type": "string", "pattern": r"^-?[0-9]+(\.[0-9]+)?$"},
            "currency": _TEXT,
        }
    ),
    "Extension": _closed(_EXTENSION, optional=("stopped_by",)),
    "ChatCompletion": _whole("chat.completion", _open({"index": _COUNT, "message": _MESSAGE, **_ENDS}), **_ENDED),
    "Completion": _whole("text_completion", _open({"index": _COUNT, "text": _TEXT, **_ENDS}), **_ENDED),
    "ChatCompletionChunk": _whole(
        "chat.completion.chunk",
        _open({"index": _COUNT, "delta": {"type": "object"}, **_ENDS}, optional=("logprobs", "finish_reason")),
        "usage",
        "weir",
        usage={"anyOf": [_named("Usage"), {"type": "null"}]},
        weir=_named("Extension"),
    ),
    "CompletionChunk": _whole(
        "text_completion",
        _open({"index": _COUNT, "text": _TEXT, **_ENDS}, optional=("logprobs", "finish_reason")),
        "usage",
        "weir",
        usage={"anyOf": [_named("Usage"), {"type": "null"}]},
        weir=_named("Extension"),
    ),
    "ModelList": _closed({"object": _is("list"), "data": _list(_closed(_BRIEF))}),
    "Model": _closed(_BRIEF | {field.name: _CARD_TYPES[field.type] for field in fields(ModelCard)}),
    "UsagePage": _closed(
        {
            "object": _is("page"),
            "data": _list(
                _closed(
                    {
                        "object": _is("bucket"),
                        "start_time": _COUNT,
                        "end_time": _COUNT,
                        "results": _list(_named("UsageResult")),
                    }
                )
            ),
            "has_more": {"type": "boolean"},
            "next_page": _MAYBE_TEXT,
        }
    ),
    "UsageResult": _open(
        {
            "object": _is("organization.usage.completions.result"),
            "input_tokens": _COUNT,
            "output_tokens": _COUNT,
            "num_model_requests": _COUNT,
            "input_cached_tokens": _COUNT,
            "output_reasoning_tokens": _COUNT,
            "project_id": _MAYBE_TEXT,
            "api_key_id": _MAYBE_TEXT,
            "model": _MAYBE_TEXT,
            "cost": _TEXT,
            "currency": _TEXT,
        }
    ),
    "CostPage": _closed(
        {
            "object": _is("page"),
            "data": _list(
                _closed(
                    {
                        "object": _is("bucket"),
                        "start_time": _COUNT,
                        "end_time": _COUNT,
                        "results": _list(
                            _closed(
                                {
                                    "object": _is("organization.costs.result"),
                                    "amount": _closed({"value": {"type": "number"}, "currency": _TEXT}),
                                    "line_item": _MAYBE_TEXT,
                                    "project_id": _MAYBE_TEXT,
                                }
                            )
                        ),
                    }
                )
            ),
            "has_more": {"type": "boolean"},
            "next_page": _MAYBE_TEXT,
        }
    ),
    "ReceiptKeyList": _closed(
        {
            "object": _is("list"),
            "data": _list(_closed({"key_id": _TEXT, "algorithm": _is("Ed25519"), "public_key": _TEXT})),
        }
    ),
    "SignedReceipt": _closed({"receipt": {"type": "object"}, "key_id": _TEXT, "signature": _TEXT}),
    "Request": _closed(
        {
            "id": _TEXT,
            "object": _is("request"),
            "status": {"type": "string", "enum": ["queued", "running", "ended"]},
            "model": _TEXT,
            "endpoint": _TEXT,
            "stream": {"type": "boolean"},
            "created": _COUNT,
            "position": {"type": ["integer", "null"]},
            "wait_ms": {"type": ["integer", "null"]},
            "attempt": _COUNT,
            "events": _COUNT,
            "outcome": _MAYBE_TEXT,
            "error_code": _MAYBE_TEXT,
            "usage": {"anyOf": [_named("Usage"), {"type": "null"}]},
            "finish_reason": _MAYBE_TEXT,
            "timings": _TIMINGS,
            "verdicts": _list(_VERDICT),
            "stopped_by": _is("budget"),
            "timeline": _list(_closed({"step": _TEXT, "duration_us": {"type": ["integer", "null"]}, "detail": _TEXT})),
            "background": {"type": "boolean"},
            "response": {"anyOf": [_named("ChatCompletion"), _named("Completion"), {"type": "null"}]},
            "error": {"anyOf": [_REFUSAL, {"type": "null"}]},
            "kept_until": {"type": ["integer", "null"]},
        },
        optional=(*_LATER, *_BACKGROUND),
    ),
    "RefusedRequest": _closed(
        {
            "id": _TEXT,
            "object": _is("request"),
            "status": _is("refused"),
            "path": _TEXT,
            "created": _COUNT,
            "outcome": _is("refused"),
            "error_code": _TEXT,
            "http_status": _COUNT,
            "error": _REFUSAL,
            "retry_after_ms": {"type": ["integer", "null"]},
            "usage": {"type": "null"},
        }
    ),
    "AnyRequest": {"oneOf": [_named("Request"), _named("RefusedRequest")]},
    "Cancelled": _closed(
        {
            "id": _TEXT,
            "object": _is("request.cancel"),
            "result": {"type": "string", "enum": ["tombstoned", "ended", "flagged", "already_ended", "stale"]},
            "outcome": _MAYBE_TEXT,
            "error_code": _MAYBE_TEXT,
        },
        optional=("outcome", "error_code"),
    ),
}
