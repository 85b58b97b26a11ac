"""Statistics of a bench run: percentiles and how sure we are of a difference. Pure; called by every bench.

Percentiles interpolate linearly between order statistics (`statistics.quantiles`, method "inclusive"), so the p99 of
fewer than a hundred samples leans on the largest one: the record prints the count beside it.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def percentile(samples: Sequence[float], *, percent: float) -> float:
    """The value below which `percent` of the samples lie, interpolated. Raises ValueError without samples."""
    if not samples:
        raise ValueError("no samples, so no percentile")
    if not 0 <= percent <= 100:
        raise ValueError(f"{percent} is not a percentage")
    ordered = sorted(samples)
    position = (len(ordered) - 1) * percent / 100
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def median(samples: Sequence[float]) -> float:
    """The middle sample. Raises ValueError without samples."""
    return percentile(samples, percent=50)


def bootstrap_interval(
    samples: Sequence[T],
    *,
    statistic: Callable[[Sequence[T]], float],
    confidence: float = 0.95,
    rounds: int = 2_000,
    seed: int = 0,
) -> tuple[float, float]:
    """An interval that holds the statistic with `confidence`, by resampling (Efron's percentile bootstrap).

    Deterministic for one seed. Raises ValueError without samples.
    """
    if not samples:
        raise ValueError("no samples, so no interval")
    source = random.Random(seed)  # noqa: S311 - repeatable resampling, no secret
    drawn = [statistic(source.choices(samples, k=len(samples))) for _ in range(rounds)]
    tail = (1 - confidence) * 50
    return percentile(drawn, percent=tail), percentile(drawn, percent=100 - tail)


def describe(samples: Sequence[float], *, unit: str = "", digits: int = 1) -> str:
    """One line of text: count, mean, percentiles and extremes."""
    if not samples:
        return "none"
    shown = {f"p{percent}": percentile(samples, percent=percent) for percent in (50, 90, 99)}
    parts = " · ".join(f"{name} {value:.{digits}f}" for name, value in shown.items())
    ends = f"{min(samples):.{digits}f}-{max(samples):.{digits}f}"
    text = f"n {len(samples)} · mean {statistics.fmean(samples):.{digits}f} · {parts} · range {ends}"
    return f"{text} {unit}".rstrip()
