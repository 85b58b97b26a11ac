"""Sets of characters as sorted, disjoint ranges of code points, and the case folding of single characters."""

import unicodedata
from bisect import bisect_right
from collections.abc import Iterable
from functools import cache

LAST = 0x10FFFF
Ranges = tuple[tuple[int, int], ...]

DIGIT: Ranges = ((48, 57),)
WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
SPACE: Ranges = ((9, 10), (12, 13), (32, 32))  # RE2's \s: no vertical tab
EVERY: Ranges = ((0, LAST),)
NOT_NEWLINE: Ranges = ((0, 9), (11, LAST))


def merge(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Sorted and disjoint, touching ranges joined."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def complement(ranges: Ranges) -> Ranges:
    result = []
    begin = 0
    for low, high in ranges:
        if begin < low:
            result.append((begin, low - 1))
        begin = high + 1
    if begin <= LAST:
        result.append((begin, LAST))
    return tuple(result)


def contains(ranges: Ranges, code: int) -> bool:
    index = bisect_right(ranges, (code, LAST + 1)) - 1
    return index >= 0 and ranges[index][0] <= code <= ranges[index][1]


def fold_case(ranges: Ranges) -> Ranges:
    """`ranges` with every character of the same simple case folding."""
    extra = [(other, other) for group in _orbits() if any(contains(ranges, code) for code in group) for other in group]
    return merge([*ranges, *extra])


@cache
def _orbits() -> tuple[tuple[int, ...], ...]:
    """Groups of code points whose one-character case foldings are equal (K, k and the Kelvin sign are one group)."""
    groups: dict[str, list[int]] = {}
    for code in range(0x1E944):
        char = chr(code)
        folded = char.casefold()
        if len(folded) == 1 and (folded != char or unicodedata.category(char).startswith("L")):
            groups.setdefault(folded, []).append(code)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)
