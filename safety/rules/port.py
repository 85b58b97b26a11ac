"""What the window knows of a rule: automata that read characters and say what matched and what may still match.

An automaton is compiled once and shared; a scanner is its state on one text. Offsets are those of the original text,
in characters. A match is any substring the rule's language holds; overlapping matches make one hit, so what is
covered does not depend on how the text was cut, on greed, or on the order of alternatives.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

AHEAD_CHARS_MIN = 128  # how far a search that goes on looks at first


class RuleError(ValueError):
    """The rule's configuration cannot be compiled; the message says what to write instead."""


class Form(StrEnum):
    """Which form of the text an automaton reads; see `safety.rules.normalise`."""

    RAW = "raw"
    COMPAT = "compat"
    FOLDED = "folded"
    SKELETON = "skeleton"


class Span(NamedTuple):
    """Half-open range of characters of the original text."""

    start: int
    end: int


class Scanner(Protocol):
    """State of one automaton on one text. Positional arguments: this is the inner loop of every stream."""

    def step(self, position: int, previous: str, char: str, /) -> Sequence[Span]:
        """Read one character (`previous` is "" at the beginning); the matches it completes."""

    def finish(self) -> Sequence[Span]:
        """The text has ended; matches that were waiting for the end."""

    def held_from(self) -> int | None:
        """Lowest offset that can still become part of a match, None when none can. Never decreases."""


class Automaton(Protocol):
    """A compiled, immutable matcher. `longest` is the length of its longest match in characters of its form."""

    @property
    def form(self) -> Form: ...

    @property
    def longest(self) -> int: ...

    def scanner(self) -> Scanner: ...

    def can_start(self, previous: str, char: str, /) -> bool:
        """May a match begin with `char` after `previous`? An idle scanner is woken only by such a character.

        The answer is the same for every `previous` that is to rules what one of `words.NEIGHBOURS` is.
        """

    def first(self, text: str, start: int = 0, /) -> int | None:
        """By native code: no match of a whole text (in this form) that begins at `start` or later begins before this.

        None when there is none. What a search that goes on costs grows with how far it finds something, not with the
        text.
        """


def search_on(search: Callable[[str, int], int | None], text: str, start: int, longest: int) -> int | None:
    """`Automaton.first` from a `start` after the beginning, by a `search` that looks at the whole text it is given.

    It is given ever longer pieces: each with the character before, and with so much behind that a match of at most
    `longest` characters which begins in the piece is seen whole, as is the character after it.
    """
    ahead = AHEAD_CHARS_MIN
    while start < len(text):
        found = search(text[start - 1 : start + ahead + longest], 1)
        if found is not None and found <= ahead:
            return start - 1 + found
        start, ahead = start + ahead, 2 * ahead
    return None
