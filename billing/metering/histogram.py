"""The logarithmic histogram of times between tokens: eight buckets an octave, so a percentile is within 4.5 %.

Workers fill it (`bucket_of`), ClickHouse merges it (`sumMap`), reports read it (`percentile_us`). Invariant:
histograms of any requests, tenants and hours add up bucket by bucket. Pure.
"""

import math
from collections.abc import Mapping

BUCKETS_PER_OCTAVE = 8
BUCKET_MAX = 255  # 2**31.8 microseconds: an hour


def bucket_of(interval_us: int) -> int:
    """Bucket index of an interval in microseconds. Bucket 0 is below one microsecond; the last one is open."""
    if interval_us < 1:
        return 0
    return min(BUCKET_MAX, 1 + math.floor(BUCKETS_PER_OCTAVE * math.log2(interval_us)))


def middle_us(bucket: int) -> float:
    """The geometric middle of a bucket in microseconds."""
    return 0.0 if bucket <= 0 else 2 ** ((bucket - 0.5) / BUCKETS_PER_OCTAVE)


def percentile_us(counts: Mapping[int, int], fraction: float) -> float | None:
    """The interval in microseconds that `fraction` of all intervals do not pass (nearest rank); None without any."""
    total = sum(counts.values())
    if total <= 0:
        return None
    rank = max(1, math.ceil(fraction * total))
    seen = 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= rank:
            return middle_us(bucket)
    raise AssertionError("the last bucket reaches every rank")
