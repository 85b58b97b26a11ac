"""The request object of `GET /v1/requests/{id}`, wherever what is known of the request comes from. Pure."""

from typing import Any

from contracts.jobs import Ticket
from fairqueue.messages import Final
from gateway.stream import assemble
from gateway.surface.errors import error_object, failure_of


def request_document(ticket: Ticket, *, status: str) -> dict[str, Any]:
    """A request of which nothing is known but what was asked and where it stands."""
    return {
        "id": ticket.request_id,
        "object": "request",
        "status": status,
        "model": ticket.model,
        "endpoint": ticket.endpoint.value,
        "stream": ticket.stream,
        "created": ticket.admitted_at_ms // 1000,
        "attempt": 0,
        "outcome": None,
        "error_code": None,
        "usage": None,
    }


def ending_fields(final: Final) -> dict[str, Any]:
    """What its end adds: counts and cost, where the time went, what guardrails and the budget did, why it failed."""
    extension = assemble.extension(final)
    fields = {
        "usage": assemble.usage(final),
        "finish_reason": final.finish_reason or None,
        "timings": extension["timings"],
        "verdicts": extension["verdicts"],
    }
    failure = failure_of(final)
    if failure is not None:
        fields["error"] = error_object(failure)["error"]
    return fields | {name: extension[name] for name in ("stopped_by",) if name in extension}
