"""Bench `stream`: its arithmetic, the peer's bytes, and the engine inside the worker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from contracts.jobs import Endpoint
from infra.bench import bare_app
from infra.bench.inline_engine import InlineEngine
from infra.bench.load import Target
from infra.bench.stream import Found, Load, Plan, Side, measures, record_rows, verdict_rows
from workers.engines.base import EngineChunk, EngineRequest

CPU: Mapping[str, float] = {"gateway": 0.5, "client": 0.25}


def load(rate: float, gap: float, *, streams: int = 100) -> Load:
    return Load(
        streams=streams,
        tokens=int(rate),
        events=int(rate),
        bytes=int(rate) * 250,
        seconds=1.0,
        gaps=[gap] * 100,
        cpu=CPU,
    )


@pytest.fixture
def found() -> Found:
    def side(name: str, rates: list[float], gap: float) -> Side:
        target = Target(name=name, model="m")
        return Side(
            target=target, pids={}, flat_out={100: [load(rate, gap) for rate in rates]}, paced={100: load(2_000, 0.05)}
        )

    plan = Plan(tokens={100: 10}, rounds=3)
    weir = side("weir", [40_000, 52_000, 60_000], 0.02)
    return Found(plan=plan, weir=weir, peer=side("bare", [170_000] * 3, 0.004))


class TestMeasures:
    def test_take_the_median_round_and_the_slow_gaps_of_both_sides(self, found: Found) -> None:
        rate, flat, paced = measures(found)
        assert (rate.value, rate.peer_value) == (52_000, 170_000)
        assert (flat.case["pace"], flat.value, flat.peer_value) == ("none", pytest.approx(20), pytest.approx(4))
        assert (paced.case["pace"], paced.ratio) == (20, pytest.approx(1))

    def test_leave_out_a_number_of_streams_that_broke(self, found: Found) -> None:
        found.broken[100] = "one answer is not whole"
        assert measures(found) == []

    def test_judge_by_the_aims(self, found: Found) -> None:
        rows = dict(verdict_rows(measures(found)))
        assert rows["tokens/s at 100 streams"].endswith("met")
        assert rows["of what the bare application sends"].endswith("aim 0.5: missed")

    def test_say_what_each_process_had_of_the_processor(self, found: Found) -> None:
        text = dict(record_rows(found.weir))["· processor"]
        assert "gateway 0.50 cores (8.3 µs a token)" in text
        assert "client 0.25 cores" in text


class TestBareApp:
    def test_sends_a_recorded_answer_byte_for_byte(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        body = b'id: 1-1\ndata: {"a":1}\n\n: ping\nid: 1-2\ndata: {"a":2}\n\ndata: [DONE]\n\n'
        (tmp_path / "17.events").write_bytes(body)
        monkeypatch.setenv("WEIR_BENCH_EVENTS", str(tmp_path))
        bare_app.events_of.cache_clear()
        events = bare_app.events_of(17)
        assert b"".join(events) == body
        assert len(events) == 3
        bare_app.events_of.cache_clear()

    def test_makes_one_event_a_token_then_usage_then_the_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("WEIR_BENCH_EVENTS", raising=False)
        bare_app.events_of.cache_clear()
        *tokens, usage, end = bare_app.events_of(3)
        assert [b'"content":" word"' in event for event in tokens] == [True] * 3
        assert b'"finish_reason":"length"' in tokens[-1]
        assert b'"completion_tokens":3' in usage
        assert end == b"data: [DONE]\n\n"


class TestInlineEngine:
    @staticmethod
    async def chunks(engine: InlineEngine, tokens: int, seed: int) -> list[EngineChunk]:
        request = EngineRequest(
            request_id="r", endpoint=Endpoint.CHAT, body={"seed": seed}, max_tokens=tokens, cache_salt=""
        )
        async with engine.generate(request) as stream:
            return [chunk async for chunk in stream]

    @pytest.mark.parametrize("pace", [0, 1_000])
    async def test_counts_each_token_and_ends_at_the_last(self, pace: int) -> None:
        engine = InlineEngine("m")
        async with asyncio.TaskGroup() as tasks:
            both = [tasks.create_task(self.chunks(engine, 5, pace)) for _ in range(2)]
        for task in both:
            found = task.result()
            assert [chunk.counts.completion for chunk in found] == [1, 2, 3, 4, 5]
            ends = [chunk.body["choices"][0]["finish_reason"] for chunk in found]
            assert ends == [None, None, None, None, "length"]
            assert found[0].body["choices"][0]["delta"]["role"] == "assistant"
        assert (await engine.stats()).running == 0
