"""Errors that a client can see. `gateway.surface.errors` alone turns them into HTTP, SSE or WebSocket form.

WeirError
├── Rejected            before the queue: nothing is held, nothing is charged
│   ├── InvalidRequest          400  invalid_request_error      the field is in `param`
│   ├── AuthFailed              401  invalid_api_key
│   ├── PermissionDenied        403  permission_denied
│   ├── NotFound                404  not_found / model_not_found
│   ├── MethodNotAllowed        405  method_not_allowed
│   ├── Conflict                409  conflict
│   ├── TooLarge                413  request_too_large
│   ├── UnsupportedMedia        415  unsupported_media_type
│   ├── Unprocessable           422  idempotency_mismatch
│   ├── LimitExceeded           429  rate_limit_exceeded        retry after `retry_after_ms`
│   ├── BudgetSpent             402  budget_exceeded            never retried
│   ├── PromptBlocked           400  content_policy_violation
│   ├── QueueFull               429  queue_full                 retry after `retry_after_ms`
│   └── Unavailable             503  service_unavailable        retry after `retry_after_ms`
└── Evicted             after the queue: what was delivered is settled, the rest of the hold is freed
    ├── DeadlinePassed          504  deadline_exceeded
    ├── Cancelled               499  request_cancelled
    ├── Revoked                 401  key_revoked
    ├── WorkerLost              502  worker_lost
    ├── SlowReader              408  slow_reader
    └── EngineFailed            502  engine_error
"""

import math
from typing import ClassVar


def retry_after_seconds(wait_ms: int) -> int:
    """`Retry-After` of RFC 9110: whole seconds, one at least and never less than the wait."""
    return max(1, math.ceil(wait_ms / 1000))


class WeirError(Exception):
    """Root. `message` is safe to show: it never holds a secret, a prompt, an address or a traceback."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "api_error"
    code: str = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_ms = retry_after_ms
        if code is not None:
            self.code = code


class Rejected(WeirError):
    """Refused before the queue: nothing stays held, nothing is charged."""


class InvalidRequest(Rejected):
    status, type, code = 400, "invalid_request_error", "invalid_value"


class AuthFailed(Rejected):
    status, type, code = 401, "authentication_error", "invalid_api_key"


class PermissionDenied(Rejected):
    status, type, code = 403, "permission_error", "permission_denied"


class NotFound(Rejected):
    status, type, code = 404, "invalid_request_error", "not_found"


class MethodNotAllowed(Rejected):
    status, type, code = 405, "invalid_request_error", "method_not_allowed"


class Conflict(Rejected):
    status, type, code = 409, "conflict_error", "conflict"


class TooLarge(Rejected):
    status, type, code = 413, "invalid_request_error", "request_too_large"


class UnsupportedMedia(Rejected):
    status, type, code = 415, "invalid_request_error", "unsupported_media_type"


class Unprocessable(Rejected):
    status, type, code = 422, "invalid_request_error", "unprocessable"


class LimitExceeded(Rejected):
    status, type, code = 429, "rate_limit_error", "rate_limit_exceeded"


class BudgetSpent(Rejected):
    status, type, code = 402, "insufficient_quota", "budget_exceeded"


class PromptBlocked(Rejected):
    status, type, code = 400, "invalid_request_error", "content_policy_violation"


class QueueFull(Rejected):
    status, type, code = 429, "rate_limit_error", "queue_full"


class Unavailable(Rejected):
    status, type, code = 503, "service_unavailable_error", "service_unavailable"


class Evicted(WeirError):
    """Ended after it was accepted: what was delivered is settled, the rest of the hold is freed."""


class DeadlinePassed(Evicted):
    status, type, code = 504, "timeout_error", "deadline_exceeded"


class Cancelled(Evicted):
    status, type, code = 499, "cancelled_error", "request_cancelled"


class Revoked(Evicted):
    status, type, code = 401, "authentication_error", "key_revoked"


class WorkerLost(Evicted):
    status, type, code = 502, "api_error", "worker_lost"


class SlowReader(Evicted):
    status, type, code = 408, "timeout_error", "slow_reader"


class EngineFailed(Evicted):
    status, type, code = 502, "api_error", "engine_error"
