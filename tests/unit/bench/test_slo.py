"""What the targets are held against."""

import pytest

from infra.bench import slo
from infra.bench.engine_metrics import Occupancy
from infra.bench.load import Answer
from infra.bench.record import Load


def found(*, ttft: float, gap: float, seconds: float = 2.0) -> slo.Found:
    answer = Answer(
        request_id="r", status=200, text="x", finish_reason="length", counts={"completion_tokens": 50},
        token_times=(ttft, ttft + gap), total=1.0, failure="",
    )  # fmt: skip
    load = Load(name="load", answers=[answer] * 4, seconds=seconds, concurrency=2)
    return slo.Found(load=load, occupancy=Occupancy())


class TestSlo:
    def test_measures_each_number_against_its_target(self) -> None:
        lines = {line.metric: line for line in slo.measures(found(ttft=0.1, gap=0.02))}
        assert (lines["ttft_p99_ms"].value, lines["ttft_p99_ms"].peer_value) == (pytest.approx(100), 200)
        assert (lines["itl_p99_ms"].value, lines["itl_p99_ms"].peer_value) == (pytest.approx(20), 25)
        assert (lines["tokens_per_s"].value, lines["tokens_per_s"].peer_value) == (pytest.approx(100), 50_000)
        assert lines["conversations_per_day"].value == pytest.approx(4 / 2 * 86_400)

    @pytest.mark.parametrize(
        ("ttft", "gap", "seconds", "passed"),
        [
            (0.1, 0.02, 0.001, [True, True, True, True]),
            (0.2, 0.026, 2.0, [False, False, False, False]),
            (0.1, 0.03, 0.3, [True, False, False, True]),
        ],
    )
    def test_says_pass_or_miss(self, ttft: float, gap: float, seconds: float, passed: list[bool]) -> None:
        rows = slo.verdict_rows(slo.measures(found(ttft=ttft, gap=gap, seconds=seconds)))
        assert [text.startswith("pass") for _, text in rows[:4]] == passed
        assert "not measured" in rows[4][1]
