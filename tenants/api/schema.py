"""What the OpenAPI file says of every operation alike: headers, errors, ETags. Named in SPECTACULAR_SETTINGS."""

from typing import Any

from drf_spectacular.openapi import AutoSchema

_PREFIX = "/api/v1/"
_METHODS = frozenset({"get", "post", "patch", "delete"})
_ERROR = {
    "type": "object",
    "required": ["error", "type", "title", "status", "detail"],
    "properties": {
        "error": {
            "type": "object",
            "description": "As the OpenAI API writes errors.",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"], "description": "The field, parameter or header that is wrong."},
                "code": {"type": "string"},
            },
        },
        "type": {"type": "string", "description": "`urn:weir:error:<code>` (RFC 9457, as the members that follow)."},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
    },
}
_REFUSED = {
    "description": "Refused; nothing was changed.",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}
_TAG = {"description": "Version of what is shown, for If-Match.", "schema": {"type": "string"}}
_HEADERS: dict[str, dict[str, Any]] = {
    "Idempotency-Key": {
        "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
        "description": "A repeat within 24 hours gets the first answer; with another body it is a 422.",
    },
    "If-Match": {
        "schema": {"type": "string", "default": "*"},
        "description": "ETag of what is changed; another version is a 412. A PATCH without it is a 428.",
    },
}


class Operation(AutoSchema):
    """One operation. Filters and pages belong to a GET: a POST that answers with several rows is no list to page."""

    def get_filter_backends(self) -> list[Any]:
        return super().get_filter_backends() if self.method == "GET" else []

    def _get_paginator(self) -> Any:
        return super()._get_paginator() if self.method == "GET" else None  # type: ignore[no-untyped-call]


def complete(result: dict[str, Any], **more: Any) -> dict[str, Any]:
    """drf-spectacular's hook after the file is made."""
    result["components"].setdefault("schemas", {})["Error"] = _ERROR
    for path, methods in result["paths"].items():
        if path.startswith(_PREFIX):
            for method in _METHODS & methods.keys():
                _complete(methods[method], method, one="{id}" in path)
    return result


def _complete(operation: dict[str, Any], method: str, *, one: bool) -> None:
    operation["responses"]["4XX"] = _REFUSED
    operation["responses"]["503"] = {**_REFUSED, "description": "A store does not answer; see Retry-After."}
    parameters = operation.setdefault("parameters", [])
    if method == "post":
        parameters.append(_header("Idempotency-Key"))
    if one and method != "get":
        parameters.append(_header("If-Match", required=method == "patch"))
    if one and method == "get":
        operation["responses"]["304"] = {"description": "As If-None-Match names it."}
    for status, answer in operation["responses"].items():
        if one and status in ("200", "201"):
            answer["headers"] = {"ETag": _TAG}


def _header(name: str, *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": required, **_HEADERS[name]}
