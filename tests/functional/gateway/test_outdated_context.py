"""A context that the cache still has and the hold script knows to be old: the first request meets what is in force."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from contracts.tenancy import TenantContext
from tenants.auth.keys import digest
from tests.functional.gateway.cast import CONTEXT, MODEL, PEPPER, PRICE
from tests.functional.gateway.conftest import Gateway

BODY = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "stream": True}
PATH = "/v1/chat/completions"


async def outdated(gateway: Gateway, **changes: Any) -> dict[str, str]:
    """Headers of a key whose context was changed after this gateway had read it, as an operator changes it."""
    old = replace(CONTEXT, api_key_id="old-key", tenant_id="old-tenant")
    key = gateway.directory.issue(old)
    headers = gateway.auth(key)
    assert (await gateway.http.get("/v1/models", headers=headers)).status_code == 200
    fresh: TenantContext = replace(old, tenant_epoch=2, **changes)
    gateway.directory.contexts[digest(key, PEPPER)] = fresh
    await gateway.services.limits.set_epochs(tenant_id=old.tenant_id, keys={old.api_key_id: 1}, tenant_epoch=2)
    return headers


class TestOutdatedContext:
    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ({"scopes": frozenset({"manage"})}, "insufficient_scope"),
            ({"allowed_models": frozenset({"another"})}, "model_not_allowed"),
            ({"allowed_networks": ("203.0.113.0/24",)}, "network_not_allowed"),
        ],
    )
    async def test_lets_nothing_in_that_is_no_longer_allowed(
        self, gateway: Gateway, changes: dict[str, Any], code: str
    ) -> None:
        headers = await outdated(gateway, **changes)
        answer = await gateway.http.post(PATH, json=BODY, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, code)

    async def test_prices_and_bounds_by_what_is_in_force(self, gateway: Gateway) -> None:
        headers = await outdated(gateway, max_tokens_cap=7, max_tokens_default=5)
        price = gateway.directory.price = replace(PRICE, output_nano=PRICE.output_nano * 2)
        async with asyncio.TaskGroup() as tasks:
            worker = tasks.create_task(gateway.worker.serve(["a"]))
            tasks.create_task(gateway.http.post(PATH, json=BODY, headers=headers))
        ticket = worker.result().ticket
        assert (ticket.max_tokens, ticket.price) == (5, price)

    async def test_refuses_a_model_whose_price_was_taken_away(self, gateway: Gateway) -> None:
        headers = await outdated(gateway)
        gateway.directory.price = None
        answer = await gateway.http.post(PATH, json=BODY, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "model_not_priced")
