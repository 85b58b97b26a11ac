"""Bench `soak`: what counts as left over and as slower."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from infra.bench.observed import MIB, Sample, growth, open_descriptors, resident_bytes, table_rows
from infra.bench.soak import Found, Others, Plan, measures, record

BEFORE = Sample(
    streams=2_000,
    resident={"gateway": 100 * MIB, "valkey": 50 * MIB},
    descriptors={"gateway": 20, "valkey": 30},
    clients=10,
    store_keys=100,
    store_bytes=MIB,
)


class TestGrowth:
    def test_is_none_where_only_the_store_keeps_more_for_its_time(self) -> None:
        after = replace(BEFORE, streams=10_000, resident={"gateway": 101 * MIB, "valkey": 500 * MIB}, store_keys=9_000)
        assert growth(BEFORE, after) == []

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"resident": {"gateway": 120 * MIB, "valkey": 0}}, "memory of gateway grew by 20.0 MiB"),
            ({"descriptors": {"gateway": 20, "valkey": 90}}, "valkey has 90 descriptors open, 30 before"),
            ({"clients": 40}, "the store has 40 clients, 10 before"),
        ],
    )
    def test_names_what_is_not_flat(self, change: dict[str, object], said: str) -> None:
        [found] = growth(BEFORE, replace(BEFORE, **change))  # type: ignore[arg-type]
        assert said in found

    def test_lets_a_process_keep_what_it_needed_for_what_it_held(self) -> None:
        after = replace(BEFORE, resident={"gateway": 140 * MIB, "valkey": 50 * MIB})
        assert growth(BEFORE, after, held=2_000) == []
        assert growth(BEFORE, after, held=100) != []

    def test_shows_each_quantity_from_left_to_right(self) -> None:
        rows = dict(table_rows([BEFORE, replace(BEFORE, streams=10_000, clients=11)]))
        assert rows["after streams"] == "2,000 → 10,000"
        assert rows["store's clients"] == "10 → 11"


class TestProcess:
    def test_is_read_from_the_kernel(self) -> None:
        assert resident_bytes(os.getpid()) > MIB
        before = open_descriptors(os.getpid())
        with Path(os.devnull).open():
            assert open_descriptors(os.getpid()) == before + 1


class TestVerdict:
    @staticmethod
    def found(beside_ms: float) -> Found:
        calm = Others(ttft=[20.0] * 10, gaps=[50.0] * 10)
        beside = Others(ttft=[22.0] * 10, gaps=[beside_ms] * 10)
        return Found(
            plan=Plan(),
            samples=[BEFORE, replace(BEFORE, streams=10_000)],
            slow_samples=[BEFORE, BEFORE],
            others={"before": calm, "beside": beside, "after": calm},
        )

    def test_is_flat_where_others_are_as_before(self) -> None:
        found = self.found(55.0)
        assert found.failures() == []
        assert record(found)["verdict"] == [("flat", "yes")]

    def test_fails_where_others_are_slower(self) -> None:
        [failure] = self.found(90.0).failures()
        assert failure.startswith("itl p99 of the others is 90.0 ms")

    def test_measures_the_ratio_of_the_others(self) -> None:
        lines = {line.metric: line for line in measures(self.found(55.0))}
        assert lines["others_itl_p99_ms"].ratio == pytest.approx(1.1)
        assert lines["gateway_grown_bytes_per_stream"].value == 0
