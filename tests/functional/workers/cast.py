"""Tickets, claims and policies for the tests of the worker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson

from contracts.jobs import Endpoint, ServiceClass, Ticket
from contracts.money import PriceCard
from contracts.tenancy import PolicyRef
from stores.system import mint_request_id

PRICE = PriceCard(card_id="card-1", currency="EUR", input_nano=100, cached_nano=10, output_nano=1_000)
POOL = "toy"
MODEL = "toy"
TENANT = "acme"


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


def ticket(body: dict[str, Any], **changes: Any) -> Ticket:
    """An admitted chat request of acme."""
    made = Ticket(
        request_id=mint_request_id(),
        tenant_id=TENANT,
        project_id="project-1",
        api_key_id="key-1",
        pool=POOL,
        model=MODEL,
        endpoint=Endpoint.CHAT,
        body=orjson.dumps(body),
        stream=True,
        include_usage=False,
        prompt_tokens=20,
        max_tokens=500,
        choices=int(body.get("n", 1)),
        cache_salt="salt-of-acme",
        price=PRICE,
        policy=None,
        service_class=ServiceClass.INTERACTIVE,
        admitted_at_ms=1_800_000_000_000,
        edge_us=1_000,
        guard_us=100,
        evaluation_log=False,
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
