"""Runs the automata of several rules over one text, character by character, waking only those a character concerns.

`Plan` is compiled with the policy and shared; `Tracker` is one text (one channel of one request).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from safety.rules.normalise import SPACED, is_repeated_space, shape
from safety.rules.port import Automaton, Form, Scanner, Span
from safety.rules.words import NEIGHBOURS, neighbour

CACHED_CHARS_MAX = 8_192


@dataclass(frozen=True, slots=True)
class Reader:
    """One automaton of the rule at index `rule`; `holds` says whether its unfinished matches hold text back."""

    rule: int
    holds: bool
    automaton: Automaton


class Hit(NamedTuple):
    """A match of the rule at index `rule`."""

    rule: int
    span: Span


class _FormPlan:
    """Readers of one form, and which of them a character wakes."""

    def __init__(self, form: Form, readers: Sequence[Reader]) -> None:
        self.form = form
        self.readers = tuple(readers)
        self._known: tuple[dict[str, tuple[tuple[int, ...], int]], ...] = tuple({} for _ in NEIGHBOURS)

    def wakes(self, before: int, char: str) -> tuple[tuple[int, ...], int]:
        """Whom `char` wakes after a character that is `before` of NEIGHBOURS, and which of those it is itself."""
        known = self._known[before]
        found = known.get(char)
        if found is None:
            previous = NEIGHBOURS[before]
            woken = (i for i, reader in enumerate(self.readers) if reader.automaton.can_start(previous, char))
            if len(known) >= CACHED_CHARS_MAX:
                known.clear()
            found = known[char] = tuple(woken), neighbour(char)
        return found


class Plan:
    """Readers by the form they read."""

    def __init__(self, readers: Iterable[Reader]) -> None:
        self.readers = tuple(readers)
        self.forms = tuple(
            _FormPlan(form, group) for form in Form if (group := [r for r in self.readers if r.automaton.form is form])
        )


class _Track:
    """The scanners of one form on one text. `held` maps an awake scanner to the offset it holds from."""

    __slots__ = ("held", "neighbour", "plan", "previous", "scanners")

    def __init__(self, plan: _FormPlan) -> None:
        self.plan = plan
        self.previous = ""
        self.neighbour = neighbour("")
        self.held: dict[int, int] = {}
        self.scanners: dict[int, Scanner] = {}

    def step(self, position: int, char: str, hits: list[Hit]) -> None:
        if char == " " and self.plan.form in SPACED and is_repeated_space(self.previous, char):
            return
        woken, self.neighbour = self.plan.wakes(self.neighbour, char)
        if woken or self.held:
            for index in {*self.held, *woken} if woken else list(self.held):
                scanner = self.scanners.get(index)
                if scanner is None:
                    scanner = self.scanners[index] = self.plan.readers[index].automaton.scanner()
                spans = scanner.step(position, self.previous, char)
                if spans:
                    rule = self.plan.readers[index].rule
                    hits.extend(Hit(rule, span) for span in spans)
                low = scanner.held_from()
                if low is None:
                    self.held.pop(index, None)
                else:
                    self.held[index] = low
        self.previous = char

    def finish(self, hits: list[Hit]) -> None:
        for index in self.held:
            rule = self.plan.readers[index].rule
            hits.extend(Hit(rule, span) for span in self.scanners[index].finish())
        self.held.clear()


class Tracker:
    """`step` with each character in turn, then `finish`; `position` counts the characters read.

    Everything before `floor` is decided for the rules that hold text back.
    """

    __slots__ = ("_tracks", "floor", "position")

    def __init__(self, plan: Plan) -> None:
        self.position = self.floor = 0
        self._tracks = [_Track(form_plan) for form_plan in plan.forms]

    @property
    def is_idle(self) -> bool:
        """Can nothing that was read become part of a match any more?"""
        return not any(track.held for track in self._tracks)

    def skip_to(self, position: int, text: str) -> None:
        """Go on at `position` of `text`. Only while idle, and where no match begins on the way."""
        assert self.is_idle
        self.position = self.floor = position
        for track in self._tracks:
            track.previous = _last_before(position, text, track.plan.form)
            track.neighbour = neighbour(track.previous)

    def step(self, char: str) -> list[Hit]:
        """The matches that `char` completes, in the order of the rules."""
        hits: list[Hit] = []
        position = self.position
        for track in self._tracks:
            for part in shape(char, track.plan.form):
                track.step(position, part, hits)
        self.position = low = position + 1
        for track in self._tracks:
            if track.held:
                readers = track.plan.readers
                low = min(low, min((held for index, held in track.held.items() if readers[index].holds), default=low))
        self.floor = low
        return hits

    def finish(self) -> list[Hit]:
        hits: list[Hit] = []
        for track in self._tracks:
            track.finish(hits)
        self.floor = self.position
        return hits

    def settled(self, rule: int) -> int:
        """No further match of `rule` begins before this offset."""
        low = self.position
        for track in self._tracks:
            for index, held in track.held.items():
                if track.plan.readers[index].rule == rule:
                    low = min(low, held)
        return low


def _last_before(position: int, text: str, form: Form) -> str:
    """The last character that is read before `position`, "" when there is none."""
    for index in range(position - 1, -1, -1):
        shaped = shape(text[index], form)
        if shaped:
            return shaped[-1]
    return ""
