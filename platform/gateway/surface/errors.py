"""The one place that turns an error into what a client sees: HTTP, an SSE frame, or a WebSocket event. Step 1.

OpenAI's error object; `x-should-retry`, `retry-after-ms` and `Retry-After`, because the SDKs retry 408, 409, 429 and
5xx unless told otherwise. Invariant: the text is one of ours; no traceback, secret, address or prompt gets out.
"""

import math
from typing import Any

from contracts import errors
from contracts.errors import Rejected, WeirError, retry_after_seconds
from contracts.outcomes import Outcome
from fairqueue.messages import Final
from tenants.limits.holds import Headroom, RateLimited

Headers = list[tuple[bytes, bytes]]

CHALLENGE = (b"www-authenticate", b'Bearer realm="weir"')  # a 401 must name its scheme (RFC 9110, section 15.5.2)


class Gone(Rejected):
    """It was here, and is no longer kept."""

    status, type, code = 410, "invalid_request_error", "gone"


class ReadTimeout(WeirError):
    """What the client was to send did not arrive in time."""

    status, type, code = 408, "timeout_error", "request_timeout"


class ExpectationFailed(Rejected):
    """An Expect header asks for what this server does not do."""

    status, type, code = 417, "invalid_request_error", "expectation_failed"


class MethodUnknown(Rejected):
    """No path takes this method, so that none could be named in an Allow header (RFC 9110, section 9.1)."""

    status, type, code = 501, "invalid_request_error", "method_not_implemented"


class UpgradeRequired(Rejected):
    """This path speaks WebSocket only."""

    status, type, code = 426, "invalid_request_error", "upgrade_required"


class HeadTooLarge(Rejected):
    """The request line and headers pass what is taken."""

    status, type, code = 431, "invalid_request_error", "headers_too_large"


class InternalError(WeirError):
    """A mistake of ours; what it was stands in the log under the request's id."""

    def __init__(self) -> None:
        super().__init__("something went wrong on our side; the request id names it in our log")


class ExternalFailure(WeirError):
    """An error as the final frame of a request tells it."""

    def __init__(self, *, message: str, code: str, status: int, kind: str, param: str | None = None) -> None:
        super().__init__(message, code=code, param=param)
        self.shown_status = status
        self.shown_type = kind


# Retrying these with the same request cannot help, or would start and bill it again.
_NEVER_RETRY = (errors.BudgetSpent, errors.Cancelled, errors.DeadlinePassed, errors.SlowReader, errors.EngineFailed)
# What `param` names where no field does, and the error names nothing closer: the part of the request that is wrong.
# An error of nobody's request (limits, budgets, 5xx but 501) has none.
_PART: dict[type[WeirError], str] = {
    errors.AuthFailed: "Authorization",
    errors.Revoked: "Authorization",
    errors.PermissionDenied: "Authorization",
    errors.NotFound: "path",
    errors.MethodNotAllowed: "method",
    errors.Conflict: "Idempotency-Key",
    errors.TooLarge: "body",
    errors.UnsupportedMedia: "Content-Type",
    errors.InvalidRequest: "request",
    ExpectationFailed: "Expect",
    MethodUnknown: "method",
    ReadTimeout: "body",
    UpgradeRequired: "Upgrade",
    HeadTooLarge: "headers",
    Gone: "starting_after",
}
_PARAM_MAX = 256
_MESSAGE_MAX = 1_024
_TYPE_OF_STATUS = {
    400: "invalid_request_error",
    401: "authentication_error",
    499: "cancelled_error",
    504: "timeout_error",
}


def status_of(error: WeirError) -> int:
    return error.shown_status if isinstance(error, ExternalFailure) else error.status


def error_object(error: WeirError) -> dict[str, Any]:
    """OpenAI's `{"error": …}`; `code` is always a string, and `param` is one where the request is wrong."""
    kind = error.shown_type if isinstance(error, ExternalFailure) else error.type
    message, param = error.message[:_MESSAGE_MAX], (param_of(error) or "")[:_PARAM_MAX]
    return {"error": {"message": message, "type": kind, "param": param or None, "code": error.code}}


def param_of(error: WeirError) -> str | None:
    """The field, header or parameter that is wrong, else the part of the request that is: `body`, `path`, …"""
    return error.param or next((_PART[kind] for kind in type(error).__mro__ if kind in _PART), None)


def error_headers(error: WeirError) -> Headers:
    """Retry advice, and the rate headers of a 429."""
    headers: Headers = []
    if isinstance(error, RateLimited):
        headers += rate_headers(requests=error.requests, tokens=error.tokens)
    if status_of(error) == 401:
        headers.append(CHALLENGE)
    if error.retry_after_ms is not None:
        headers += [
            (b"retry-after-ms", b"%d" % max(1, error.retry_after_ms)),
            (b"retry-after", b"%d" % retry_after_seconds(error.retry_after_ms)),
            (b"x-should-retry", b"true"),
        ]
    elif isinstance(error, _NEVER_RETRY) or status_of(error) in (409, 429, 499, 501, 502, 504):
        headers.append((b"x-should-retry", b"false"))
    return headers


def rate_headers(*, requests: Headroom | None, tokens: Headroom | None) -> Headers:
    """`x-ratelimit-*`; an unlimited metric has none. Remaining is never negative; reset is a duration like `1m2s`."""
    headers: Headers = []
    for name, room in ((b"requests", requests), (b"tokens", tokens)):
        if room is not None:
            headers += [
                (b"x-ratelimit-limit-" + name, b"%d" % room.limit),
                (b"x-ratelimit-remaining-" + name, b"%d" % max(0, room.remaining)),
                (b"x-ratelimit-reset-" + name, duration_text(room.reset_ms).encode()),
            ]
    return headers


def rate_limits(*, requests: Headroom | None, tokens: Headroom | None) -> list[dict[str, Any]]:
    """The same over WebSocket, in the form of OpenAI's `rate_limits`; an unlimited metric has no entry."""
    return [
        {"name": name, "limit": room.limit, "remaining": max(0, room.remaining), "reset_seconds": room.reset_ms / 1000}
        for name, room in (("requests", requests), ("tokens", tokens))
        if room is not None
    ]


def duration_text(duration_ms: int) -> str:
    """OpenAI's form of a duration: 250ms, 1s, 6m0s, 2h0m0s."""
    if duration_ms < 1000:
        return f"{max(0, duration_ms)}ms"
    seconds = math.ceil(duration_ms / 1000)
    hours, minutes = seconds // 3600, seconds % 3600 // 60
    if hours:
        return f"{hours}h{minutes}m{seconds % 60}s"
    return f"{minutes}m{seconds % 60}s" if minutes else f"{seconds}s"


def failure_of(final: Final) -> WeirError | None:
    """What a final frame reports instead of an answer; None when the answer is whole.

    An output that the guard stopped is an answer: its last frame carries `finish_reason: content_filter`.
    """
    if final.outcome is Outcome.OK or (final.outcome is Outcome.GUARDRAIL and final.finish_reason):
        return None
    status = final.status if 400 <= final.status <= 599 else 502
    return ExternalFailure(
        message=final.error_message or "the request did not finish",
        code=final.error_code or "engine_error",
        status=status,
        kind=_TYPE_OF_STATUS.get(status, "api_error"),
        param=final.error_param or ("Authorization" if status == 401 else None),
    )
