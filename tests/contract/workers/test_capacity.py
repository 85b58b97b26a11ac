"""The capacity plan held against what vLLM itself made of the same memory."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

from controlplane.capacity.config import layout_of, params_of
from controlplane.capacity.plan import GIB, Ask, cache_tokens, make_plan
from tests.contract.workers.conftest import Engine

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]


class TestCapacity:
    async def test_is_what_the_engine_reports_of_its_own_cache(self, engine: Engine) -> None:
        if engine.kind != "vllm":
            pytest.skip("the simulated engine is told its number of blocks")
        facts = await engine.host.adapter.facts()
        config = json.loads((engine.model / "config.json").read_text())
        ask = Ask(
            layout=layout_of(config), params=params_of(config), dtype_bytes=Fraction(2), kv_dtype_bytes=2,
            tokens=facts.context_tokens, block=facts.block_tokens, budget=1 * GIB,  # as the fixture starts it
        )  # fmt: skip
        planned = cache_tokens(make_plan(ask))
        assert planned is not None
        assert abs(planned - facts.kv_tokens) <= facts.kv_tokens // 100
