"""Tickets, claims and chunks for the unit tests of the worker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from contracts.jobs import Claim, Ticket
from contracts.money import PriceCard
from contracts.tokens import TokenCounts
from tests.factories.jobs import make_claim, make_ticket
from workers.engines.base import EngineChunk

TICKET = make_ticket(
    pool="toy",
    model="toy-public",
    max_tokens=100,
    price=PriceCard(card_id="c", currency="EUR", input_nano=1, cached_nano=1, output_nano=1),
)


def ticket(**changes: Any) -> Ticket:
    return replace(TICKET, **changes)


def claim(request_id: str = TICKET.request_id, **changes: Any) -> Claim:
    return make_claim(ticket(request_id=request_id), **changes)


def chunk(*choices: dict[str, Any], completion: int = 0, **fields: Any) -> EngineChunk:
    body = {"id": "engine-1", "object": "x", "created": 5, "model": "m", "choices": list(choices), **fields}
    return EngineChunk(body=body, counts=TokenCounts(prompt=10, completion=completion))


def said(text: str | None = None, *, index: int = 0, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    given = {} if text is None else {"content": text}
    return {"index": index, "delta": {**given, **delta}, "logprobs": None, "finish_reason": finish, "token_ids": [1]}
