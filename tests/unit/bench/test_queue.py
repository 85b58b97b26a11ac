"""The arithmetic of bench `queue`, on rounds with known rates."""

import pytest

from infra.bench.idle import Idle
from infra.bench.queue import PEER, TENANTS, Found, Plan, flatness, measures, verdict_rows


@pytest.fixture
def found() -> Found:
    rates = {10: [1_600.0, 2_000.0, 100.0], 1_000: [1_800.0] * 3, 100_000: [1_250.0] * 3}
    return Found(
        plan=Plan(rounds=3),
        cycles=rates,
        peer=[3_000.0, 3_200.0, 9_000.0],
        wakes=[0.001] * 99 + [0.5],
        idle=Idle(workers=10_000, cpu=0.02, wakes=[0.001] * 100),
        bytes_each=2_500,
    )


class TestMeasures:
    def test_take_the_median_round_of_each_size_and_of_the_peer(self, found: Found) -> None:
        lines = [line for line in measures(found) if line.metric == "cycles_per_s"]
        assert [line.case["tenants"] for line in lines] == list(TENANTS)
        assert [line.value for line in lines] == [1_600.0, 1_800.0, 1_250.0]
        assert {(line.peer, line.peer_value) for line in lines} == {(PEER, 3_200.0)}
        assert lines[0].ratio == pytest.approx(0.5)

    def test_give_the_slow_wakes_and_the_memory(self, found: Found) -> None:
        lines = {(line.metric, line.case.get("idle_workers")): line.value for line in measures(found)}
        assert lines["wakeup_p99_ms", 1] > 1.0
        assert lines["wakeup_p99_ms", 10_000] == 1.0
        assert lines["idle_cpu", 10_000] == 0.02
        assert lines["bytes_per_queued_request", None] == 2_500


class TestFlatness:
    def test_is_the_quickest_size_over_the_slowest(self, found: Found) -> None:
        assert flatness(found) == pytest.approx(1_800 / 1_250)


class TestVerdicts:
    def test_say_what_was_met_and_what_was_missed(self, found: Found) -> None:
        rows = dict(verdict_rows(found, measures(found)))
        assert rows["cycles_per_s tenants=10"].endswith("met")
        assert rows["cycles_per_s tenants=100000"].endswith("missed")
        assert rows["quickest over slowest"].endswith("aim 1.3: missed")


class TestPlan:
    def test_counts_its_steps_for_the_bar(self) -> None:
        assert Plan(rounds=2).steps == 3 + 3 * 4 + 3
