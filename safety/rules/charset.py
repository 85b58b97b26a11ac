"""Characters that a policy does not let pass: scripts of other languages, and what a reader cannot see.

The script of a character is RE2's (Unicode's Scripts.txt). A run of such characters is one match. What cannot be seen
can carry instructions to a model (tag characters), or turn a text around (bidirectional controls).
"""

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import re2

from contracts.text import shown
from safety.rules.port import Form, RuleError, Span, search_on
from safety.rules.regex import native

SCRIPTS_MAX = 50
CACHED_CHARS_MAX = 8_192
_CLASSES = {
    "control": r"[\x{00}-\x{08}\x{0B}\x{0C}\x{0E}-\x{1F}\x{7F}-\x{9F}]",
    "bidirectional": r"[\x{061C}\x{200E}\x{200F}\x{202A}-\x{202E}\x{2066}-\x{2069}]",
    "invisible": r"[\x{AD}\x{034F}\x{115F}\x{1160}\x{17B4}\x{17B5}\x{180B}-\x{180F}\x{200B}\x{2060}-\x{2065}"
    r"\x{206A}-\x{206F}\x{3164}\x{FEFF}\x{FFA0}\x{FFF0}-\x{FFF8}\x{1BCA0}-\x{1BCA3}\x{1D173}-\x{1D17A}]",
    "tags": r"[\x{E0000}-\x{E0FFF}]",
    "private_use": r"[\x{E000}-\x{F8FF}\x{F0000}-\x{FFFFD}\x{100000}-\x{10FFFD}]",
}
DENIABLE = tuple(_CLASSES)


@dataclass(frozen=True, slots=True)
class Charset:
    """`refused` matches one character that may not pass."""

    refused: "re2._Regexp[str]"
    form: Form = Form.RAW
    longest: int = 1
    known: dict[str, bool] = field(default_factory=dict, compare=False)

    def scanner(self) -> "CharsetScanner":
        return CharsetScanner(self)

    def can_start(self, previous: str, char: str, /) -> bool:
        return self.refuses(char)

    def refuses(self, char: str) -> bool:
        known = self.known.get(char)
        if known is None:
            if len(self.known) >= CACHED_CHARS_MAX:
                self.known.clear()
            known = self.known[char] = unicodedata.category(char) == "Cs" or self.refused.search(char) is not None
        return known

    def first(self, text: str, start: int = 0, /) -> int | None:
        return search_on(self._search, text, start, self.longest) if start else self._search(text, 0)

    def _search(self, text: str, start: int) -> int | None:
        try:
            match = self.refused.search(text, start)
        except UnicodeEncodeError:  # a lone surrogate: RE2 reads UTF-8 only
            return start
        return None if match is None else match.start()


class CharsetScanner:
    """Remembers where the run of refused characters began."""

    __slots__ = ("_begin", "_charset", "_next")

    def __init__(self, charset: Charset) -> None:
        self._charset = charset
        self._begin = self._next = -1

    def step(self, position: int, previous: str, char: str, /) -> Sequence[Span]:
        if not self._charset.refuses(char):
            return ()
        if position != self._next:
            self._begin = position
        self._next = position + 1
        return (Span(self._begin, self._next),)

    def finish(self) -> Sequence[Span]:
        return ()

    def held_from(self) -> int | None:
        return None


@lru_cache(maxsize=256)
def _compiled(scripts: tuple[str, ...], deny: tuple[str, ...]) -> Charset:
    parts = [_CLASSES[name] for name in deny]
    if scripts:
        parts.append("[^" + "".join(rf"\p{{{name}}}" for name in (*scripts, "Common", "Inherited")) + "]")
    return Charset(native("|".join(parts)))


def compile_charset(*, scripts: Iterable[str], deny: Iterable[str]) -> Charset:
    """Finds characters of no script in `scripts` (when there are any; digits and punctuation belong to all), and of
    the classes in `deny`. Raises RuleError for an unknown name.
    """
    chosen, denied = tuple(sorted(set(scripts))), tuple(sorted(set(deny)))
    if not chosen and not denied:
        raise RuleError("name a script that may pass, or a class of characters that may not")
    if unknown := sorted(set(denied) - set(_CLASSES)):
        raise RuleError(f"unknown class {shown(unknown[0])}; there are {', '.join(_CLASSES)}")
    if len(chosen) > SCRIPTS_MAX:
        raise RuleError(f"at most {SCRIPTS_MAX} scripts")
    for name in chosen:
        if not (name.isascii() and name.replace("_", "").isalpha() and len(name) > 2):
            raise RuleError(f"{shown(name)} is no script of Unicode, such as Latin or Cyrillic")
        try:
            native(rf"\p{{{name}}}")
        except RuleError as error:
            raise RuleError(f"{shown(name)} is no script of Unicode, such as Latin or Cyrillic") from error
    return _compiled(chosen, denied)
