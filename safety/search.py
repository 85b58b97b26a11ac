"""Step 4, GUARDRAIL: the matches of one rule in one whole text of a prompt. Called by `guard`.

Native code looks first: most texts hold no match. Where one may begin, the same automata as on output say exactly; when
nothing they have read can become part of a match any more, native code looks on from there.

Invariant: the matches are those which the automata find reading every character from the first to the last.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from safety.policy import CompiledRule
from safety.rules.cover import Tally
from safety.rules.normalise import Reading
from safety.rules.port import Automaton, Form, Span
from safety.rules.tracker import Hit, Plan, Reader, Tracker
from safety.verdicts import Action

READ_CHARS_MIN = 8  # before native code looks on: about what a call of it costs, for matches may be dense


class Prompt:
    """One text of a prompt, and its forms: each is made once, for all rules that read it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._readings: dict[Form, Reading] = {}

    def reading(self, form: Form) -> Reading:
        if form not in self._readings:
            self._readings[form] = Reading(self.text, form)
        return self._readings[form]


@dataclass(slots=True)
class _Likely:
    """An automaton, and where native code sees the next place in its form at which a match of it may begin."""

    automaton: Automaton
    reading: Reading
    place: int | None

    def after(self, position: int) -> int | None:
        """No match begins at `position` of the text or later, and before this; None when none does."""
        if self.place is None:
            return None
        place = bisect_left(self.reading.offsets, position)
        if self.place < place:
            self.place = self.automaton.first(self.reading.formed, place)
        return None if self.place is None else self.reading.offsets[self.place]


def find_matches(rule: CompiledRule, prompt: Prompt) -> tuple[list[Span], int]:
    """Matches of `rule`, and the number of groups they make; for a blocking rule the first match."""
    likely = _likely(rule, prompt)
    if not likely:
        return [], 0
    spans: list[Span] = []
    tally = Tally()
    for hits, settled in _hits(likely, prompt.text):
        for hit in hits:
            spans.append(hit.span)
            tally.add(hit.span, settled=settled)
        if rule.action is Action.BLOCK:
            return spans, 1
    return spans, tally.count


def _likely(rule: CompiledRule, prompt: Prompt) -> list[_Likely]:
    likely = []
    for automaton in rule.automata:
        reading = prompt.reading(automaton.form)
        place = automaton.first(reading.formed)
        if place is not None:
            likely.append(_Likely(automaton, reading, place))
    return likely


def _hits(likely: Sequence[_Likely], text: str) -> Iterator[tuple[list[Hit], int]]:
    """What each character completes, and the place before which no further match begins."""
    tracker = Tracker(Plan(Reader(rule=0, holds=True, automaton=one.automaton) for one in likely))
    at = _next(likely, 0)
    while at is not None:
        tracker.skip_to(at, text)
        for position in range(at, len(text)):
            hits = tracker.step(text[position])
            if hits:
                yield hits, tracker.floor
            elif position >= at + READ_CHARS_MIN and tracker.is_idle:
                break
        else:
            if hits := tracker.finish():
                yield hits, tracker.floor
            return
        at = _next(likely, tracker.position)


def _next(likely: Sequence[_Likely], position: int) -> int | None:
    """Where the next match of any may begin."""
    return min((place for one in likely if (place := one.after(position)) is not None), default=None)
