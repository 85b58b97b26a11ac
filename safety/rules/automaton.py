"""Regular expression tree -> deterministic automaton, built whole and bounded, so that running it has no surprises.

Thompson's construction (CACM 11(6), 1968) and the subset construction. A tenant's pattern can be exponential in
either; both are counted and refused beyond a bound, so neither compiling nor running can slow another tenant.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from safety.rules.charsets import LAST, Ranges, contains
from safety.rules.port import RuleError
from safety.rules.syntax import Chars, Choice, Node, Place, Repeat, Sequence

INSTRUCTIONS_MAX = 3_000
STATES_MAX = 1_500
WORK_MAX = 500_000  # instruction visits while determinising: about half a second
CACHED_CHARS_MAX = 8_192
DEAD = -1


@dataclass(slots=True)
class Dfa:
    """`table[state][class]` is the next state or DEAD; from every state that is not DEAD a match can be reached.

    State 0 is the beginning. `longest` is the length of the longest match, None when there is no bound.
    """

    table: list[array[int]]
    accepting: list[bool]
    grows: list[bool]  # a further character can still lead to a match
    longest: int | None
    bounds: list[int]
    bound_class: list[int]
    cached: dict[str, int] = field(default_factory=dict)

    def class_of(self, char: str) -> int:
        """Column of `char`. The cache is dropped when full: a pure function stays one."""
        index = self.cached.get(char)
        if index is None:
            index = self.bound_class[bisect_right(self.bounds, ord(char)) - 1]
            if len(self.cached) >= CACHED_CHARS_MAX:
                self.cached.clear()
            self.cached[char] = index
        return index


def build(node: Node) -> Dfa:
    """The automaton of `node`. Raises RuleError when it would be too large or accepts the empty text."""
    program = _Program()
    begin = program.emit(node, program.accept())
    bounds, bound_class, samples = _alphabet(program.charsets)
    table, accepting = _determinise(program, begin, samples)
    if accepting[0]:
        raise RuleError("the pattern matches the empty text")
    _prune(table, accepting)
    grows = [any(target != DEAD for target in row) for row in table]
    return Dfa(table, accepting, grows, _longest(table, accepting), bounds, bound_class)


class _Program:
    """Thompson's machine: an instruction reads a character class, or splits, or accepts."""

    def __init__(self) -> None:
        self.charsets: dict[Ranges, int] = {}
        self.reads: list[int] = []  # index of the charset, -1 for a split, -2 for accept
        self.targets: list[tuple[int, ...]] = []
        self.emitted = 0

    def accept(self) -> int:
        return self._add(-2, ())

    def _add(self, reads: int, targets: tuple[int, ...]) -> int:
        if len(self.reads) >= INSTRUCTIONS_MAX:
            raise RuleError(f"the pattern needs more than {INSTRUCTIONS_MAX} instructions; use smaller repetitions")
        self.reads.append(reads)
        self.targets.append(targets)
        return len(self.reads) - 1

    def emit(self, node: Node, after: int) -> int:
        """Instructions for `node` that go on at `after`; the first of them."""
        self.emitted += 1  # nested repetitions of nothing add no instruction, and must still end
        if self.emitted > 4 * INSTRUCTIONS_MAX:
            raise RuleError("the pattern's repetitions are nested too deeply")
        if isinstance(node, Chars):
            charset = self.charsets.setdefault(node.ranges, len(self.charsets))
            return self._add(charset, (after,))
        if isinstance(node, Sequence):
            for part in reversed(node.parts):
                after = self.emit(part, after)
            return after
        if isinstance(node, Choice):
            return self._add(-1, tuple(self.emit(option, after) for option in node.options))
        if isinstance(node, Repeat):
            return self._emit_repeat(node, after)
        assert isinstance(node, Place)
        raise RuleError(
            f"`{node.edge}` is supported at the beginning or the end of the pattern or of an alternative only"
        )

    def _emit_repeat(self, node: Repeat, after: int) -> int:
        entry = after
        if node.high is None:
            entry = self._add(-1, ())
            self.targets[entry] = (self.emit(node.body, entry), after)
        else:
            for _ in range(node.high - node.low):
                entry = self._add(-1, (self.emit(node.body, entry), after))
        for _ in range(node.low):
            entry = self.emit(node.body, entry)
        return entry

    def closure(self, starts: AbstractSet[int]) -> frozenset[int]:
        """Reading and accepting instructions reachable from `starts` without a character."""
        seen = set(starts)
        stack = list(starts)
        while stack:
            index = stack.pop()
            if self.reads[index] == -1:
                fresh = [target for target in self.targets[index] if target not in seen]
                seen.update(fresh)
                stack.extend(fresh)
        return frozenset(index for index in seen if self.reads[index] != -1)


def _alphabet(charsets: dict[Ranges, int]) -> tuple[list[int], list[int], list[frozenset[int]]]:
    """Intervals of code points, the class of each, and for each class the charsets it is in."""
    edges = {0}
    for ranges in charsets:
        for low, high in ranges:
            edges.add(low)
            if high < LAST:
                edges.add(high + 1)
    bounds = sorted(edges)
    if len(bounds) * len(charsets) > WORK_MAX:
        raise RuleError("the pattern has too many character classes")
    classes: dict[frozenset[int], int] = {}
    bound_class = []
    for code in bounds:
        member = frozenset(index for ranges, index in charsets.items() if contains(ranges, code))
        bound_class.append(classes.setdefault(member, len(classes)))
    return bounds, bound_class, list(classes)


def _determinise(program: _Program, begin: int, classes: list[frozenset[int]]) -> tuple[list[array[int]], list[bool]]:
    first = program.closure({begin})
    numbers = {first: 0}
    order = [first]
    table: list[array[int]] = []
    closures: dict[frozenset[int], frozenset[int]] = {}  # most classes lead a state to the same few targets
    work = 0
    while len(table) < len(order):
        state = order[len(table)]
        reads: dict[int, list[int]] = {}
        for index in state:
            if program.reads[index] >= 0:
                reads.setdefault(program.reads[index], []).append(program.targets[index][0])
        row = array("i")
        work += len(state) * len(classes)
        for member in classes:
            targets = frozenset(target for charset in member & reads.keys() for target in reads[charset])
            if not targets:
                row.append(DEAD)
                continue
            reached = closures.get(targets)
            if reached is None:
                reached = closures[targets] = program.closure(targets)
            work += len(reached)
            if reached not in numbers:
                numbers[reached] = len(order)
                order.append(reached)
            row.append(numbers[reached])
        if len(order) > STATES_MAX or work > WORK_MAX:
            raise RuleError(
                f"the pattern needs more than {STATES_MAX} states to run in bounded time; make it more specific "
                "or its repetitions smaller"
            )
        table.append(row)
    accepting = [any(program.reads[index] == -2 for index in state) for state in order]
    return table, accepting


def _prune(table: list[array[int]], accepting: list[bool]) -> None:
    """Send transitions into states that can never accept to DEAD."""
    sources: list[set[int]] = [set() for _ in table]
    for state, row in enumerate(table):
        for target in row:
            if target != DEAD:
                sources[target].add(state)
    useful = {state for state, accepts in enumerate(accepting) if accepts}
    stack = list(useful)
    while stack:
        fresh = sources[stack.pop()] - useful
        useful |= fresh
        stack.extend(fresh)
    for row in table:
        for index, target in enumerate(row):
            if target not in useful:
                row[index] = DEAD


def _longest(table: list[array[int]], accepting: list[bool]) -> int | None:
    """Length of the longest path to an accepting state; None when a cycle is on the way (every state is useful)."""
    depth: dict[int, int] = {}
    on_path: set[int] = set()
    stack: list[tuple[int, bool]] = [(0, False)]
    while stack:
        state, done = stack.pop()
        targets = {target for target in table[state] if target != DEAD}
        if done:
            on_path.discard(state)
            depth[state] = max((1 + depth[target] for target in targets), default=0)
            continue
        if state in depth:
            continue
        on_path.add(state)
        stack.append((state, True))
        for target in targets:
            if target in on_path:
                return None
            if target not in depth:
                stack.append((target, False))
    return depth[0]
