"""Sets of characters as sorted, disjoint ranges of code points, and the case folding of single characters."""

from bisect import bisect_left, bisect_right
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
    cased, orbits = _orbits()
    extra = [
        (other, other)
        for low, high in ranges
        for code in cased[bisect_left(cased, low) : bisect_right(cased, high)]
        for other in orbits[code]
    ]
    return merge([*ranges, *extra])


@cache
def _orbits() -> tuple[list[int], dict[int, tuple[int, ...]]]:
    """Code points that share their case folding with others (K, k and the Kelvin sign; small and capital sharp s), in
    order, and with whom each does."""
    groups: dict[str, set[int]] = {}
    for char in map(chr, range(0x1E944)):
        folded = char.casefold()
        if folded != char:
            groups.setdefault(folded, {ord(folded)} if len(folded) == 1 else set()).add(ord(char))
    orbits = {code: tuple(sorted(group)) for group in groups.values() for code in group}
    return sorted(orbits), orbits
