"""What billing and the rooms beside it must agree on without importing each other."""

import pytest

from billing.metering import histogram, keys
from fairqueue.keys import PoolKeys
from workers import latency


class TestSharedNames:
    def test_the_usage_stream_is_the_fair_queue_s(self) -> None:
        assert keys.usage_stream("pool:1") == PoolKeys("pool:1").usage

    def test_what_a_queue_counts_lies_where_its_scripts_write(self) -> None:
        pool = PoolKeys("pool:1")
        assert keys.ended_in_hour("pool:1", 7) == f"{pool.prefix}ended:7"
        assert keys.counted_from("pool:1") == (pool.script_keys[5], "counted_from")

    @pytest.mark.parametrize("value_us", [0, 1, 7, 8, 9, 15, 16, 100, 12_345, 9_999_999, 3_600_000_000])
    def test_a_histogram_is_read_as_workers_write_it(self, value_us: int) -> None:
        bucket = latency.bucket(value_us)
        assert histogram.lower_edge(bucket) == latency.lower_edge(bucket)
        assert histogram.lower_edge(bucket) <= value_us < histogram.lower_edge(bucket + 1)
        assert abs(histogram.middle_us(bucket) - value_us) <= max(1, value_us * 0.0625)
