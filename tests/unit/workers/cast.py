"""Tickets, claims and chunks for the unit tests of the worker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from contracts.jobs import Claim, Endpoint, ServiceClass, Ticket
from contracts.money import PriceCard
from contracts.tokens import TokenCounts
from workers.engines.base import EngineChunk

TICKET = Ticket(
    request_id="01990000-0000-7000-8000-000000000001",
    tenant_id="acme",
    project_id="project-1",
    api_key_id="key-1",
    pool="toy",
    model="toy-public",
    endpoint=Endpoint.CHAT,
    body=b'{"messages":[]}',
    stream=True,
    include_usage=False,
    prompt_tokens=10,
    max_tokens=100,
    choices=1,
    cache_salt="salt",
    price=PriceCard(card_id="c", currency="EUR", input_nano=1, cached_nano=1, output_nano=1),
    policy=None,
    service_class=ServiceClass.INTERACTIVE,
    admitted_at_ms=1_800_000_000_123,
    edge_us=1,
    guard_us=1,
    evaluation_log=False,
)


def ticket(**changes: Any) -> Ticket:
    return replace(TICKET, **changes)


def claim(request_id: str = TICKET.request_id, **changes: Any) -> Claim:
    made = Claim(
        ticket=ticket(request_id=request_id),
        fence=f"1-{request_id}",
        attempt=1,
        log_length=0,
        queue_us=0,
        engine_deaths=0,
    )
    return replace(made, **changes)


def chunk(*choices: dict[str, Any], completion: int = 0, **fields: Any) -> EngineChunk:
    body = {"id": "engine-1", "object": "x", "created": 5, "model": "m", "choices": list(choices), **fields}
    return EngineChunk(body=body, counts=TokenCounts(prompt=10, completion=completion))


def said(text: str | None = None, *, index: int = 0, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    given = {} if text is None else {"content": text}
    return {"index": index, "delta": {**given, **delta}, "logprobs": None, "finish_reason": finish, "token_ids": [1]}
