"""The state of one regular expression on one text: which starts are alive, and in which state of the automaton.

Starts that reach the same state share its future, so only the earliest is kept, unless a cap on the length or a check
of the matched text (a checksum) tells them apart.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from safety.rules.automaton import DEAD, Dfa
from safety.rules.port import Span
from safety.rules.syntax import Edge
from safety.rules.words import is_ascii_word

CHECKED_MAX = 8  # starts that one character ends; a text made to have more must not cost more, so they are matches
NOTHING: tuple[Span, ...] = ()
# What ends the host of a URL in a text, besides the slash, `?` or `#` of its path.
HOST_STOPS = frozenset(
    "<>\"'`(){}[]|,;\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008"
    "\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)


def holds(edge: Edge, before: str, after: str) -> bool:
    """Does the assertion hold between these characters? "" stands for the beginning or end of the text."""
    if edge is Edge.BEGIN:
        return not before
    if edge is Edge.END:
        return not after
    if edge is Edge.HOST_END:
        return not after or after in HOST_STOPS
    return (is_ascii_word(before) != is_ascii_word(after)) is (edge is Edge.BOUNDARY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """An automaton with the assertions at its ends, a cap in characters and a check of the matched text.

    `final`: what the check says of a match it says of every longer one from the same start.
    """

    dfa: Dfa
    lead: tuple[Edge, ...]
    trail: tuple[Edge, ...]
    longest: int
    capped: bool
    check: Callable[[str], bool] | None
    final: bool = False

    @property
    def keeps_all(self) -> bool:
        return self.capped or self.check is not None

    def can_start(self, previous: str, char: str) -> bool:
        """Do the assertions at the beginning hold between these characters?"""
        for edge in self.lead:  # noqa: SIM110 - in the inner loop of every stream `all` takes twice as long
            if not holds(edge, previous, char):
                return False
        return True


class RegexScanner:
    """Ordinals count the characters read since the scanner was idle; `_positions` maps them to the original text."""

    __slots__ = ("_chars", "_language", "_last", "_live", "_ordinal", "_pending", "_positions")

    def __init__(self, language: Language) -> None:
        self._language = language
        self._live: dict[int, list[int]] = {}
        self._pending: list[Span] = []
        self._last = ""
        self._rest()

    def _rest(self) -> None:
        self._ordinal = 0
        self._chars: list[str] = []
        self._positions: list[int] = []

    def step(self, position: int, previous: str, char: str, /) -> Sequence[Span]:
        language = self._language
        found: list[Span] = []
        if self._pending:
            found.extend(self._resolve(previous, char))
        self._chars.append(char)
        self._positions.append(position)
        self._advance(previous, char)
        completed = self._completed(position + 1)
        if language.trail:
            self._pending = completed
        else:
            found.extend(completed)
        self._ordinal += 1
        self._last = char
        if not self._live:
            self._rest()
        elif len(self._chars) > 4 * language.longest:
            self._trim()
        return found

    def finish(self) -> Sequence[Span]:
        found = self._resolve(self._last, "") if self._pending else NOTHING
        self._live.clear()
        self._rest()
        return found

    def held_from(self) -> int | None:
        low = min(starts[0] for starts in self._live.values()) if self._live else None
        held = None if low is None else self._positions[low - self._base()]
        if self._pending:
            waiting = min(span.start for span in self._pending)
            return waiting if held is None else min(held, waiting)
        return held

    def _base(self) -> int:
        return self._ordinal - len(self._chars)

    def _resolve(self, before: str, after: str) -> list[Span]:
        pending, self._pending = self._pending, []
        return pending if all(holds(edge, before, after) for edge in self._language.trail) else []

    def _advance(self, previous: str, char: str) -> None:
        """Move every live start over `char`, drop those that died, and begin one where that is possible."""
        dfa = self._language.dfa
        column = dfa.class_of(char)
        moved: dict[int, list[int]] = {}
        for state, ordinals in self._live.items():
            self._place(moved, dfa.table[state][column], ordinals)
        begun = dfa.table[0][column]
        if begun != DEAD and self._language.can_start(previous, char):
            self._place(moved, begun, [self._ordinal])
        self._live = moved

    def _place(self, moved: dict[int, list[int]], target: int, ordinals: list[int]) -> None:
        if target == DEAD:
            return
        there = moved.get(target)
        if there is None:
            moved[target] = ordinals
        elif not self._language.keeps_all:
            there[0] = min(there[0], ordinals[0])
        else:
            there.extend(ordinals)
            there.sort()

    def _completed(self, end: int) -> list[Span]:
        """The longest match that ends here: it covers the others. Starts that cannot grow any more are let go."""
        dfa = self._language.dfa
        longest: int | None = None
        for state in list(self._live):
            ordinals = self._live[state]
            if dfa.accepting[state]:
                start = self._accepted(ordinals)
                if start is None and self._language.final:
                    del self._live[state]
                    continue
                if start is not None and (longest is None or start < longest):
                    longest = start
            if self._language.capped and dfa.grows[state]:
                ordinals = _from(ordinals, self._ordinal + 2 - self._language.longest)
                self._live[state] = ordinals
            if not dfa.grows[state] or not ordinals:
                del self._live[state]
        return [] if longest is None else [Span(self._positions[longest - self._ordinal - 1], end)]

    def _accepted(self, ordinals: list[int]) -> int | None:
        """The first of these starts whose match the check confirms. Of more than CHECKED_MAX none is checked."""
        check = self._language.check
        first = ordinals[0]
        if check is None or len(ordinals) > CHECKED_MAX:
            return first
        text = "".join(self._chars[first - self._ordinal - 1 :])
        return next((start for start in ordinals if check(text[start - first :])), None)

    def _trim(self) -> None:
        surplus = min(starts[0] for starts in self._live.values()) - self._base()
        del self._chars[:surplus]
        del self._positions[:surplus]


def _from(ordinals: list[int], oldest: int) -> list[int]:
    if ordinals[0] >= oldest:
        return ordinals
    return [ordinal for ordinal in ordinals if ordinal >= oldest]
