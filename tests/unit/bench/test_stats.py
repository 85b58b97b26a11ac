"""Percentiles and intervals of a bench."""

import statistics
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.bench.stats import bootstrap_interval, describe, median, percentile

SAMPLES = st.lists(st.floats(min_value=-1e6, max_value=1e6), min_size=2, max_size=60)


class TestPercentile:
    def test_takes_the_sample_itself_when_there_is_one(self) -> None:
        assert [percentile([7.0], percent=share) for share in (0, 50, 99, 100)] == [7.0] * 4

    def test_interpolates_between_neighbours(self) -> None:
        assert percentile([40.0, 10.0, 20.0, 30.0], percent=50) == 25.0
        assert percentile([0.0, 100.0], percent=99) == 99.0

    @given(SAMPLES)
    def test_agrees_with_the_standard_library(self, samples: list[float]) -> None:
        expected = statistics.quantiles(samples, n=100, method="inclusive")
        for share in (1, 50, 90, 99):
            assert percentile(samples, percent=share) == pytest.approx(expected[share - 1], rel=1e-9, abs=1e-6)

    def test_refuses_to_speak_of_no_samples(self) -> None:
        with pytest.raises(ValueError, match="no samples"):
            percentile([], percent=50)

    def test_refuses_more_than_all_of_them(self) -> None:
        with pytest.raises(ValueError, match="not a percentage"):
            percentile([1.0], percent=101)


def _interval(samples: list[float]) -> tuple[float, float]:
    return bootstrap_interval(samples, statistic=median, rounds=200)


class TestBootstrapInterval:
    def test_is_the_same_for_the_same_seed(self) -> None:
        samples = [float(value) for value in range(40)]
        assert _interval(samples) == _interval(samples)

    def test_holds_the_median_of_what_it_was_given(self) -> None:
        samples = [float(value) for value in range(101)]
        low, high = bootstrap_interval(samples, statistic=median, rounds=500)
        assert low < median(samples) < high
        assert high - low < 40

    def test_keeps_pairs_together(self) -> None:
        pairs = [(float(value) + 5, float(value)) for value in range(50)]

        def difference(drawn: Sequence[tuple[float, float]]) -> float:
            return median([ours for ours, _ in drawn]) - median([theirs for _, theirs in drawn])

        assert bootstrap_interval(pairs, statistic=difference, rounds=100) == (5.0, 5.0)

    def test_has_no_width_when_all_samples_agree(self) -> None:
        assert _interval([3.0] * 10) == (3.0, 3.0)


class TestDescribe:
    def test_names_count_and_percentiles(self) -> None:
        text = describe([1.0, 2.0, 3.0], unit="ms")
        assert text == "n 3 · mean 2.0 · p50 2.0 · p90 2.8 · p99 3.0 · range 1.0-3.0 ms"

    def test_says_when_there_is_nothing(self) -> None:
        assert describe([]) == "none"
