"""Percentiles of merged histograms."""

from hypothesis import given
from hypothesis import strategies as st

from billing.metering.histogram import lower_edge, percentile_us
from workers.latency import bucket

INTERVALS = st.lists(st.integers(0, 10_000_000), min_size=1, max_size=200)


def histogram(intervals: list[int]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for interval in intervals:
        counts[bucket(interval)] = counts.get(bucket(interval), 0) + 1
    return counts


class TestPercentile:
    @given(intervals=INTERVALS, percent=st.sampled_from([1, 50, 90, 99, 100]))
    def test_lies_in_the_bucket_of_the_exact_one(self, intervals: list[int], percent: int) -> None:
        rank = max(1, -(-percent * len(intervals) // 100))
        exact = sorted(intervals)[rank - 1]
        found = percentile_us(histogram(intervals), percent / 100)
        assert found is not None
        assert lower_edge(bucket(exact)) <= found < lower_edge(bucket(exact) + 1)

    @given(one=INTERVALS, two=INTERVALS)
    def test_of_a_merge_is_that_of_all_intervals(self, one: list[int], two: list[int]) -> None:
        first, second = histogram(one), histogram(two)
        merged = {key: first.get(key, 0) + second.get(key, 0) for key in first.keys() | second.keys()}
        assert percentile_us(merged, 0.9) == percentile_us(histogram(one + two), 0.9)

    def test_of_nothing_is_none(self) -> None:
        assert percentile_us({}, 0.5) is None
