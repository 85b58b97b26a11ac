"""Errors of the management API in OpenAI's error object, with RFC 9457's members beside it.

`{"error": {message, type, param, code}, "type": "urn:weir:error:<code>", "title", "status", "detail"}`: an OpenAI SDK
reads the first, a reader of problem details the rest; both say the same. `param` names the field, the parameter or the
header that is wrong, else the part of the request that is (`body`, `path`, …), as on /v1; of a 5xx it is null.
"""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.core.exceptions import PermissionDenied as DjangoPermissionDenied
from django.core.exceptions import RequestDataTooBig, SuspiciousOperation, TooManyFieldsSent
from django.core.exceptions import ValidationError as DjangoValidationError
from django.db import DataError, IntegrityError, InterfaceError, InternalError, OperationalError
from django.http import Http404, HttpResponse, JsonResponse
from rest_framework import exceptions
from rest_framework.response import Response

from contracts.errors import Conflict, Rejected, Unprocessable, WeirError, retry_after_seconds
from contracts.text import shown

_TYPES = {401: "authentication_error", 403: "permission_error", 409: "conflict_error", 429: "rate_limit_error"}
_CODES = {
    400: "invalid_value",
    401: "invalid_api_key",
    403: "permission_denied",
    404: "not_found",
    405: "method_not_allowed",
    406: "not_acceptable",
    409: "conflict",
    413: "request_too_large",
    415: "unsupported_media_type",
    429: "rate_limit_exceeded",
    503: "service_unavailable",
}
# What `param` names where no field does.
_PARTS = {
    401: "Authorization",
    403: "Authorization",
    404: "path",
    405: "method",
    406: "Accept",
    413: "body",
    415: "Content-Type",
}
_LOCK_NOT_AVAILABLE = "55P03"
_OUT_OF_RANGE = frozenset({"23502", "23514"})  # not-null and check: a wrong value, not a clash
_AGAIN_SECONDS = "5"


@dataclass(frozen=True, slots=True)
class Broken:
    """What a client hears of a constraint that its request would break. `{}` in `says` is the value that it sent."""

    status: int
    param: str | None
    says: str


# By the name in PostgreSQL, whichever finds it: Django before the write, or PostgreSQL where two came at once.
CONSTRAINTS = {
    "tenant_name_unique": Broken(409, "name", "A tenant named {} exists already."),
    "project_name_unique": Broken(409, "name", "A project named {} exists already."),
    "member_unique": Broken(409, "user", "{} is a member already."),
    "tenants_plan_name_key": Broken(409, "name", "A plan named {} exists already."),
    "limit_once_per_owner_metric_model": Broken(409, None, "Another request sets this limit right now; send it again."),
    "tenant_currency": Broken(400, "currency", "Three capital letters, like USD."),
    "plan_weight_positive": Broken(400, "weight_milli", "At least 1."),
    "plan_max_tokens_positive": Broken(400, "max_tokens_default", "At least 1."),
    "plan_service_class": Broken(400, "service_class", "One of: interactive, batch."),
    "limit_cap_range": Broken(400, "cap", "The cap is out of its range."),
}
# No request breaks these; if one does it is a fault of ours, told as a conflict without a name.
UNREACHABLE = {
    "limit_has_one_owner": "the service writes the owner, whole",
    "idempotent_write_once": "a second write waits for the first, and gets its answer",
    "tenants_apikey_digest_key": "two new keys of 190 random bits",
    "tenants_apikey_previous_digest_key": "the same",
}


class KeyReused(Unprocessable):
    """422: an Idempotency-Key that stands for another request."""

    code = "idempotency_mismatch"


class Changed(Rejected):
    """412: the resource is not the one that If-Match names."""

    status, type, code = 412, "invalid_request_error", "precondition_failed"


class MustMatch(Rejected):
    """428: this change is made to what its author saw, so If-Match is needed."""

    status, type, code = 428, "invalid_request_error", "precondition_required"


def openai_error(error: Exception, context: dict[str, Any]) -> Response | None:
    """DRF's exception handler. None leaves what is not a client's mistake to Django's own 500."""
    if isinstance(error, WeirError):
        answer = _answer(error.status, error.message, param=error.param, code=error.code, kind=error.type)
        if error.retry_after_ms is not None:
            answer["Retry-After"] = str(retry_after_seconds(error.retry_after_ms))
        return answer
    if isinstance(error, DjangoValidationError):
        return _invalid(error, context)
    if isinstance(error, IntegrityError | DataError | OperationalError | InterfaceError | InternalError):
        return database_error(error, context)
    if isinstance(error, SuspiciousOperation):
        return _unreadable(error, context)
    if isinstance(error, Http404):
        return _answer(404, "Not found.")
    if isinstance(error, DjangoPermissionDenied):
        return _answer(403, "You may not do this.")
    if isinstance(error, exceptions.APIException):
        param, message = _first(error.detail)
        answer = _answer(error.status_code, message, param=param or ("body" if error.status_code == 400 else None))
        if isinstance(error, exceptions.NotAuthenticated | exceptions.AuthenticationFailed):
            answer["WWW-Authenticate"] = "Bearer"
        return answer
    return None


def database_error(error: Exception, context: dict[str, Any] | None = None) -> Response:
    """What PostgreSQL refused or could not say."""
    if isinstance(error, IntegrityError):
        name = getattr(getattr(error.__cause__, "diag", None), "constraint_name", None)
        if name in CONSTRAINTS:
            return _broken(CONSTRAINTS[name], context or {})
        if getattr(error.__cause__, "sqlstate", None) in _OUT_OF_RANGE:
            return _answer(400, "A value is out of its range.", param="body")
        return _answer(409, "This conflicts with what is already there.")
    if isinstance(error, DataError):
        return _answer(400, "A value cannot be stored.", param="body")
    if getattr(error.__cause__, "sqlstate", None) == _LOCK_NOT_AVAILABLE:
        busy = Conflict("Another request changes this right now.")
        answer = _answer(busy.status, busy.message, code=busy.code, kind=busy.type)
    else:
        answer = _answer(503, "The database does not answer right now.", kind="service_unavailable_error")
    answer["Retry-After"] = _AGAIN_SECONDS
    return answer


def as_json(answer: Response) -> HttpResponse:
    """An answer outside of a view, which nobody renders."""
    headers = {name: value for name, value in answer.headers.items() if name != "Content-Type"}
    return JsonResponse(answer.data, status=answer.status_code, headers=headers)


def _unreadable(error: Exception, context: dict[str, Any]) -> Response:
    """What Django itself refuses to read, whoever reads first: its own answer would be a page of HTML."""
    if isinstance(error, TooManyFieldsSent):
        most = settings.DATA_UPLOAD_MAX_NUMBER_FIELDS
        query = getattr(context.get("request"), "META", {}).get("QUERY_STRING", "")
        part = "query" if query.count("&") >= most else "body"  # as Django counts
        return _answer(400, f"More than {most:,} parameters.", param=part)
    if isinstance(error, RequestDataTooBig):
        return _answer(413, "The body is too large.")
    return _answer(400, "The request cannot be read.")


def _invalid(error: DjangoValidationError, context: dict[str, Any]) -> Response:
    """What a service or a model's own check refused. What no field can mend is a conflict with how things stand."""
    fields: dict[str, list[DjangoValidationError]] = getattr(error, "error_dict", None) or {"": error.error_list}
    broken = CONSTRAINTS.get(_constraint_of(next(iter(fields.values()))[0]))
    if broken is not None:
        return _broken(broken, context)
    param, message = _first(error.message_dict if hasattr(error, "error_dict") else error.messages)
    return _answer(400, message, param=param) if param else _answer(409, message)


def _constraint_of(error: DjangoValidationError) -> str:
    """The constraint that a model's check found broken; "" for another error."""
    if error.code == "unique" and error.params:  # a field's own, which Django and PostgreSQL name differently
        model, fields = error.params["model_class"], error.params["unique_check"]
        return f"{model._meta.db_table}_{model._meta.get_field(fields[0]).column}_key"  # noqa: SLF001 - Django's own API
    return error.code if error.code in CONSTRAINTS else ""


def _broken(broken: Broken, context: dict[str, Any]) -> Response:
    data = getattr(context.get("request"), "data", None)
    value = data.get(broken.param) if isinstance(data, dict) else None
    message = broken.says.format(shown(value) if isinstance(value, str) else "this")
    return _answer(broken.status, message, param=broken.param)


def _answer(
    status: int, message: str, *, param: str | None = None, code: str | None = None, kind: str | None = None
) -> Response:
    body = {
        "message": message,
        "type": kind or _TYPES.get(status, "invalid_request_error"),
        "param": param or _PARTS.get(status),
        "code": code or _CODES.get(status, "invalid_value"),
    }
    problem = {
        "type": f"urn:weir:error:{body['code']}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": message,
    }
    return Response({"error": body, **problem}, status=status)


def _first(detail: Any, path: str = "") -> tuple[str | None, str]:
    """The first complaint of a nested error with the field that it is about, as `limits.0.cap`."""
    if isinstance(detail, dict) and detail:
        field, inner = next(iter(detail.items()))
        own = "" if field in ("non_field_errors", "__all__", "detail") else str(field)
        return _first(inner, ".".join(part for part in (path, own) if part))
    if isinstance(detail, list | tuple) and detail:
        index = next((i for i, item in enumerate(detail) if item), 0)
        nested = isinstance(detail[index], dict)
        return _first(detail[index], f"{path}.{index}" if nested and path else path)
    return path or None, str(detail)
