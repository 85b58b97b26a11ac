"""Tickets, claims and usage records as tests need them: whole, valid, and changed by name where a test cares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from billing.clickhouse.shapes import RequestRow
from contracts.jobs import Claim, Endpoint, Ticket, Timings, UsageRecord
from contracts.money import PriceCard
from contracts.tenancy import ServiceClass
from contracts.tokens import TokenCounts

REQUEST_ID = "01990000-0000-7000-8000-000000000001"
ADMITTED_AT_MS = 1_800_000_000_123
PRICE = PriceCard(card_id="card", currency="EUR", input_nano=1, cached_nano=1, output_nano=2)

_TICKET = Ticket(
    request_id=REQUEST_ID,
    tenant_id="acme",
    project_id="project",
    api_key_id="key",
    pool="pool",
    model="model",
    endpoint=Endpoint.CHAT,
    body=b'{"messages":[]}',
    stream=True,
    include_usage=False,
    prompt_tokens=10,
    max_tokens=20,
    choices=1,
    cache_salt="salt",
    price=PRICE,
    policy=None,
    service_class=ServiceClass.INTERACTIVE,
    admitted_at_ms=ADMITTED_AT_MS,
    edge_us=11,
    guard_us=22,
    evaluation_log=False,
)


def make_ticket(request_id: str = REQUEST_ID, **changes: Any) -> Ticket:
    """An admitted chat request of acme."""
    return replace(_TICKET, request_id=request_id, **changes)


def make_claim(ticket: Ticket, **changes: Any) -> Claim:
    """The first claim of a request that has released nothing."""
    first = Claim(ticket=ticket, fence=f"1-{ticket.request_id}", attempt=1, log_length=0, queue_us=0, engine_deaths=0)
    return replace(first, **changes)


def make_record(ticket: Ticket = _TICKET, **changes: Any) -> UsageRecord:
    """The usage of a request whose answer came to its end at the first attempt."""
    record = UsageRecord(
        request_id=ticket.request_id,
        revision=1,
        tenant_id=ticket.tenant_id,
        project_id=ticket.project_id,
        api_key_id=ticket.api_key_id,
        pool=ticket.pool,
        model=ticket.model,
        endpoint=ticket.endpoint.value,
        service_class=ticket.service_class.value,
        admitted_at_ms=ticket.admitted_at_ms,
        billed_at_ms=ticket.admitted_at_ms + 4_444,
        counts=TokenCounts(prompt=10, cached=6, completion=5, reasoning=2),
        delivered_tokens=5,
        outcome="ok",
        finish_reason="stop",
        error_code="",
        attempt=1,
        worker_id="w1",
        price=ticket.price,
        timings=Timings(),
        policy_id="",
        policy_version=0,
        verdicts=(),
        stream=ticket.stream,
        end_user_hash="",
    )
    return replace(record, **changes)


def make_row(ticket: Ticket = _TICKET, **changes: Any) -> RequestRow:
    """What reports know of a request whose answer came to its end."""
    row = RequestRow(
        request_id=ticket.request_id, revision=1, tenant_id=ticket.tenant_id, project_id=ticket.project_id,
        api_key_id=ticket.api_key_id, model=ticket.model, pool=ticket.pool, endpoint=ticket.endpoint.value,
        service_class=ticket.service_class.value, stream=ticket.stream, admitted_at_ms=ticket.admitted_at_ms,
        billed_at_ms=1, prompt_tokens=7, cached_tokens=0, completion_tokens=2, reasoning_tokens=0, delivered_tokens=2,
        ttft_ms=1.0, itl_ms=1.0, total_ms=2.0, outcome="ok", finish_reason="stop", error_code="", attempt=1,
        worker_id="w1", price_card_id="pc1", currency="USD", cost_nano=11_000, log_key="",
    )  # fmt: skip
    return replace(row, **changes)
