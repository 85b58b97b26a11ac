"""The histogram's formula and the sums of durations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.latency import LatencyTrack, bucket, lower_edge


class TestBucket:
    @pytest.mark.parametrize(
        ("value_us", "index"), [(0, 0), (7, 7), (8, 8), (15, 15), (16, 16), (17, 16), (18, 17), (1_000, 63)]
    )
    def test_follows_the_documented_formula(self, value_us, index):
        assert bucket(value_us) == index

    @given(st.integers(min_value=0, max_value=2**50))
    def test_holds_its_value_within_an_eighth(self, value_us):
        index = bucket(value_us)
        assert lower_edge(index) <= value_us < lower_edge(index + 1)
        assert (value_us - lower_edge(index)) * 8 <= value_us

    @given(st.integers(min_value=0, max_value=500))
    def test_is_the_inverse_of_its_lower_edge(self, index):
        assert bucket(lower_edge(index)) == index

    def test_refuses_a_negative_duration(self):
        with pytest.raises(ValueError, match="never negative"):
            bucket(-1)


def track() -> LatencyTrack:
    return LatencyTrack(claimed_at=10.0, edge_us=1_000, guard_us=200, queue_us=5_000)


class TestLatencyTrack:
    def test_adds_edge_queue_and_first_release_to_time_to_first_token(self):
        one = track()
        one.sent_at = 10.01
        one.token(at=10.11)
        one.token(at=10.51)
        one.first_release_at = 10.12
        timings = one.timings(at=10.6)
        assert timings.ttft_us == 1_000 + 5_000 + 120_000
        assert (timings.prefill_us, timings.decode_us) == (100_000, 400_000)
        assert timings.total_us == 6_000 + 600_000

    def test_spreads_an_interval_over_the_tokens_it_released(self):
        one = track()
        one.release(at=11.0, tokens=1)
        one.release(at=11.04, tokens=5)
        timings = one.timings(at=12.0)
        assert timings.itl == {bucket(10_000): 4}
        assert timings.itl_sum_us == 40_000

    def test_counts_no_release_without_fresh_tokens(self):
        one = track()
        one.release(at=11.0, tokens=2)
        one.release(at=12.0, tokens=2)
        assert one.timings(at=13.0).itl == {}

    def test_knows_no_first_token_when_nothing_was_released(self):
        assert track().timings(at=11.0).ttft_us == 0
