"""Tickets, claims and policies for the tests of the worker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson

from contracts.jobs import Ticket
from contracts.money import PriceCard
from contracts.tenancy import PolicyRef
from stores.system import mint_request_id
from tests.factories.jobs import make_ticket

PRICE = PriceCard(card_id="card-1", currency="EUR", input_nano=100, cached_nano=10, output_nano=1_000)
POOL = "toy"
MODEL = "toy"
TENANT = "acme"


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


def ticket(body: dict[str, Any], **changes: Any) -> Ticket:
    """An admitted chat request of acme."""
    made = make_ticket(
        mint_request_id(),
        pool=POOL,
        model=MODEL,
        body=orjson.dumps(body),
        prompt_tokens=20,
        max_tokens=500,
        choices=int(body.get("n", 1)),
        cache_salt="salt-of-acme",
        price=PRICE,
        admitted_at_ms=1_800_000_000_000,
        edge_us=1_000,
        guard_us=100,
    )
    return replace(made, **changes)


BAN_PUMPKIN: dict[str, Any] = {
    "id": "no-pumpkins",
    "version": 1,
    "rules": [
        {
            "name": "pumpkins",
            "kind": "ban_list",
            "stage": ["output"],
            "action": "block",
            "fail": "closed",
            "config": {"words": ["pumpkin"]},
        }
    ],
}
BAN_REF = PolicyRef(policy_id="no-pumpkins", version=1)
