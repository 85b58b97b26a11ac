"""A text that is longer than a policy allows: what is beyond the length is one match, however far it goes."""

from collections.abc import Sequence
from dataclasses import dataclass

from safety.rules.port import Form, Span

LENGTH_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Length:
    """Characters of the original text that may pass."""

    chars_max: int
    form: Form = Form.RAW
    longest: int = 1

    def scanner(self) -> "LengthScanner":
        return LengthScanner(self.chars_max)

    def can_start(self, previous: str, char: str, /) -> bool:
        return True

    def first(self, text: str, start: int = 0, /) -> int | None:
        place = max(start, self.chars_max)
        return place if place < len(text) else None


class LengthScanner:
    """Holds nothing back: a character is beyond the length or is not."""

    __slots__ = ("_most",)

    def __init__(self, most: int) -> None:
        self._most = most

    def step(self, position: int, previous: str, char: str, /) -> Sequence[Span]:
        return (Span(self._most, position + 1),) if position >= self._most else ()

    def finish(self) -> Sequence[Span]:
        return ()

    def held_from(self) -> int | None:
        return None
