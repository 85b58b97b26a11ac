"""POST /api/v1/capacity: the plan for who may read, and refusals that name the field."""

from typing import Any

import pytest

from tests.functional.tenants.api import Api, manager, member
from tests.functional.tenants.conftest import Customer

pytestmark = pytest.mark.django_db

REFERENCE = {
    "layers": 80, "kv_heads": 64, "head_size": 128, "attention": "mha", "params": 70_000_000_000, "dtype_bytes": "2",
    "tokens": 4_096, "budget_gib": "400", "tp": 1, "block_size": 16,
}  # fmt: skip


class TestCapacity:
    def test_is_the_command_s_answer(self, acme: Customer) -> None:
        for api in (manager(acme), member(acme, "viewer")):
            status, plan = api("post", "capacity", REFERENCE)
            assert status == 200
            assert plan["weights_bytes"] == 140_000_000_000
            assert plan["kv_bytes_per_sequence"] == 10_737_418_240
            assert plan["ceiling_sequences"] == 40
            assert "80 layers" in plan["formulas"]["kv_bytes_per_sequence"]

    def test_takes_a_configuration(self, acme: Customer) -> None:
        config = {"num_hidden_layers": 61, "num_attention_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
        body = {
            "config": config,
            "params": 671 * 10**9,
            "dtype_bytes": "1",
            "tokens": 1_000,
            "budget_gib": "40",
            "tp": 8,
        }
        status, plan = manager(acme)("post", "capacity", body)
        assert status == 200
        assert plan["layers"] == [{"count": 61, "kind": "mla", "latent_size": 576, "window": None}]

    @pytest.mark.parametrize(
        ("changes", "param"),
        [
            ({"tokens": 0}, "tokens"), ({"tokens": None}, "tokens"), ({"dtype_bytes": 2}, "dtype_bytes"),
            ({"tp": 3}, "tp"), ({"budget_gib": "-1"}, "budget_gib"), ({"attention": "x"}, "attention"),
            ({"config": {"num_hidden_layers": 1}}, "layers"), ({"unheard": 1}, "unheard"),
        ],
    )  # fmt: skip
    def test_refuses_by_field(self, acme: Customer, changes: dict[str, Any], param: str) -> None:
        status, refusal = manager(acme)("post", "capacity", {**REFERENCE, **changes})
        assert (status, refusal["error"]["param"]) == (400, param)

    @pytest.mark.parametrize("name", ["budget_gib", "device_memory_gib", "utilization", "overhead_gib"])
    @pytest.mark.parametrize("missing", ["dtype_bytes", "params", "tokens", "layers"])
    def test_tells_what_is_wrong_before_what_is_missing(self, acme: Customer, name: str, missing: str) -> None:
        body = {field: value for field, value in REFERENCE.items() if field != missing}
        for wrong, says in (("x", "A decimal number, like 0.5 or 400."), (1, "Not a valid string.")):
            status, refusal = manager(acme)("post", "capacity", {**body, name: wrong})
            assert (status, refusal["error"]["param"], refusal["error"]["message"]) == (400, name, says)

    def test_is_for_who_is_known(self, acme: Customer) -> None:
        assert Api()("post", "capacity", REFERENCE)[0] == 401
