"""Covered text: overlapping matches are one group, groups are replaced, and released text never goes past a doubt."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from safety.rules.port import Span


@dataclass(slots=True)
class Group:
    """Matches that overlap. `lead`, the (start, rule) of the leftmost and then first rule, names the replacement."""

    start: int
    end: int
    lead: tuple[int, int]


class Cover:
    """What of one text is covered and how far it was released. Offsets are of the original text."""

    __slots__ = ("_base", "_cursor", "_groups", "_open_end", "_text")

    def __init__(self, *, offset: int = 0) -> None:
        self._text = ""
        self._base = offset
        self._cursor = offset
        self._open_end = offset
        self._groups: list[Group] = []

    @property
    def waiting(self) -> int:
        """Characters that came in, and neither left nor were replaced."""
        return len(self._text)

    def append(self, text: str) -> None:
        self._text += text

    def add(self, span: Span, *, rule: int) -> None:
        """Cover `span`. What overlaps a group that was already replaced is swallowed by it."""
        if span.start < self._open_end:
            self._swallow(span.end)
            return
        groups = self._groups  # in order, apart from each other: those that overlap the span stand side by side
        first = bisect_right(groups, span.start, key=lambda one: one.end)
        last = bisect_left(groups, span.end, lo=first, key=lambda one: one.start)
        group = Group(span.start, span.end, (span.start, rule))
        if first < last:
            left, right = groups[first], groups[last - 1]
            group = Group(min(left.start, group.start), max(right.end, group.end), min(left.lead, group.lead))
        groups[first:last] = [group]

    def _swallow(self, end: int) -> None:
        """Extend the replaced group; waiting groups it now reaches become part of it."""
        self._open_end = max(self._open_end, end)
        while self._groups and self._groups[0].start < self._open_end:
            self._open_end = max(self._open_end, self._groups.pop(0).end)
        self._cursor = max(self._cursor, self._open_end)

    def release(self, floor: int, *, replacements: tuple[str, ...]) -> str:
        """The text up to `floor`, with groups that begin before it replaced; what is covered beyond it never leaves."""
        parts = []
        done = bisect_left(self._groups, floor, key=lambda one: one.start)
        for group in self._groups[:done]:
            parts.append(self._slice(self._cursor, group.start))
            parts.append(replacements[group.lead[1]])
            self._cursor = self._open_end = group.end
        del self._groups[:done]
        if self._cursor < floor:
            parts.append(self._slice(self._cursor, floor))
            self._cursor = floor
        self._text = self._text[self._cursor - self._base :]
        self._base = self._cursor
        return "".join(parts)

    def _slice(self, start: int, end: int) -> str:
        return self._text[start - self._base : end - self._base]


class Tally:
    """Counts the groups of one rule, without keeping those that can no longer grow."""

    __slots__ = ("_closed", "_open")

    def __init__(self) -> None:
        self._closed = 0
        self._open: list[Span] = []

    @property
    def count(self) -> int:
        return self._closed + len(self._open)

    def add(self, span: Span, *, settled: int) -> None:
        """`settled`: no further match begins before this offset."""
        apart = []
        for other in self._open:
            if other.start < span.end and span.start < other.end:
                span = Span(min(other.start, span.start), max(other.end, span.end))
            elif other.end <= min(settled, span.start):
                self._closed += 1
            else:
                apart.append(other)
        self._open = [*apart, span]
