"""Step 5, QUEUE: a usage record back into the fields of a usage entry. Called by `queue`. Pure.

Invariant: `usage_from_stream` of what this makes is the record itself.
"""

from contracts.jobs import Endpoint, Ticket, UsageRecord
from contracts.tenancy import PolicyRef, ServiceClass
from contracts.wire import encode
from fairqueue.messages import pack_verdicts


def entry_of(record: UsageRecord) -> dict[str, bytes | str | int]:
    """The entry as `end` would have written it. Raises ValueError for an endpoint or a class that is none."""
    counts = record.counts
    return {
        "ticket": encode(_ticket_of(record)),
        "prompt": counts.prompt,
        "cached": counts.cached,
        "completion": counts.completion,
        "reasoning": counts.reasoning,
        "delivered": record.delivered_tokens,
        "outcome": record.outcome,
        "finish": record.finish_reason,
        "error": record.error_code,
        "attempt": record.attempt,
        "worker": record.worker_id,
        "billed_at_ms": record.billed_at_ms,
        "timings": encode(record.timings),
        "verdicts": pack_verdicts(record.verdicts),
        "log_key": record.log_key,
        "param": record.error_param,
    }


def _ticket_of(record: UsageRecord) -> Ticket:
    """What a record keeps of its ticket. The rest was for whoever ran it."""
    policy = PolicyRef(policy_id=record.policy_id, version=record.policy_version) if record.policy_id else None
    return Ticket(
        request_id=record.request_id,
        tenant_id=record.tenant_id,
        project_id=record.project_id,
        api_key_id=record.api_key_id,
        pool=record.pool,
        model=record.model,
        endpoint=Endpoint(record.endpoint),
        body=b"",
        stream=record.stream,
        include_usage=False,
        prompt_tokens=record.counts.prompt,
        max_tokens=record.counts.completion,
        choices=1,
        cache_salt="",
        price=record.price,
        policy=policy,
        service_class=ServiceClass(record.service_class),
        admitted_at_ms=record.admitted_at_ms,
        edge_us=record.timings.edge_us,
        guard_us=record.timings.guard_us,
        evaluation_log=False,
        budget_cut=record.budget_cut,
        end_user_hash=record.end_user_hash,
    )
