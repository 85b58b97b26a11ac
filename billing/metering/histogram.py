"""Reads the logarithmic histogram of times between tokens that workers write and ClickHouse merges (`sumMap`).

Called by reports. Eight buckets an octave, so a percentile is within 6.3 % (HdrHistogram's scheme with three bits of
precision; `workers.latency` writes it, a contract test holds the two together). Invariant: histograms of any requests,
tenants and hours add up bucket by bucket. Pure.
"""

import math
from collections.abc import Mapping

_BITS = 3
_SUB = 1 << _BITS


def lower_edge(bucket: int) -> int:
    """The smallest interval, in microseconds, that falls into `bucket`."""
    if bucket < _SUB:
        return bucket
    exponent = bucket // _SUB + _BITS - 1
    return (_SUB + bucket % _SUB) << (exponent - _BITS)


def middle_us(bucket: int) -> float:
    """The middle of the intervals, whole microseconds, that fall into `bucket`."""
    return (lower_edge(bucket) + lower_edge(bucket + 1) - 1) / 2


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
