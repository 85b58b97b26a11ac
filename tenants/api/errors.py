"""Errors of the management API in OpenAI's error object, with RFC 9457's members beside it.

`{"error": {message, type, param, code}, "type": "urn:weir:error:<code>", "title", "status", "detail"}`: an OpenAI SDK
reads the first, a reader of problem details the rest; both say the same.
"""

from http import HTTPStatus
from typing import Any

from django.core.exceptions import PermissionDenied as DjangoPermissionDenied
from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.core.exceptions import ValidationError as DjangoValidationError
from django.db import DataError, IntegrityError, InterfaceError, InternalError, OperationalError
from django.http import Http404, HttpResponse, JsonResponse
from rest_framework import exceptions
from rest_framework.response import Response

from contracts.errors import Conflict, Rejected, Unprocessable, WeirError

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
_LOCK_NOT_AVAILABLE = "55P03"
_AGAIN_SECONDS = "5"


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
        return _answer(error.status, error.message, param=error.param, code=error.code, kind=error.type)
    if isinstance(error, DjangoValidationError):
        param, message = _first(error.message_dict if hasattr(error, "error_dict") else error.messages)
        return _answer(400, message, param=param)
    if isinstance(error, IntegrityError | DataError | OperationalError | InterfaceError | InternalError):
        return database_error(error)
    if isinstance(error, SuspiciousOperation):
        return _unreadable(error)
    if isinstance(error, Http404):
        return _answer(404, "Not found.")
    if isinstance(error, DjangoPermissionDenied):
        return _answer(403, "You may not do this.")
    if isinstance(error, exceptions.APIException):
        param, message = _first(error.detail)
        answer = _answer(error.status_code, message, param=param)
        if isinstance(error, exceptions.NotAuthenticated | exceptions.AuthenticationFailed):
            answer["WWW-Authenticate"] = "Bearer"
        return answer
    return None


def database_error(error: Exception) -> Response:
    """What PostgreSQL refused or could not say."""
    if isinstance(error, IntegrityError):
        return _answer(409, "This conflicts with what is already there.")
    if isinstance(error, DataError):
        return _answer(400, "A value cannot be stored.")
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


def _unreadable(error: Exception) -> Response:
    """What Django itself refuses to read, whoever reads first: its own answer would be a page of HTML."""
    if isinstance(error, RequestDataTooBig):
        return _answer(413, "The body is too large.")
    return _answer(400, "The request cannot be read.")


def _answer(
    status: int, message: str, *, param: str | None = None, code: str | None = None, kind: str | None = None
) -> Response:
    body = {
        "message": message,
        "type": kind or _TYPES.get(status, "invalid_request_error"),
        "param": param,
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
