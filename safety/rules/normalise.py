"""Forms of a text that a rule reads, made character by character so that they can be made while streaming.

RAW is the text. COMPAT undoes look-alike encodings (full-width digits, ligatures) and drops what cannot be seen
(zero-width, soft hyphens, variation selectors). FOLDED also ignores case and Latin-style accents, and every white
space is a space; SKELETON also reads a letter of another script as the ASCII letter it looks like. Because a form maps
one code point at a time, a span of a form is a span of the original; a sequence that only composes to another character
(Korean letters to a syllable) is not composed. In the SPACED forms of a run of spaces only the first is read: a
`Reading` holds no other, a `Tracker` hands no other on.
"""

import re
import unicodedata
from array import array
from collections.abc import Sequence
from functools import cached_property, lru_cache

from safety.rules.lookalikes import LOOKALIKES
from safety.rules.port import Form

# Of Unicode's Default_Ignorable_Code_Point what is no format character (Cf), many of them because not assigned yet.
_INVISIBLE = frozenset(
    [0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2065, 0x3164, 0xFFA0, *range(0x180B, 0x1810), *range(0xFE00, 0xFE10),
     *range(0xFFF0, 0xFFF9)]
)  # fmt: skip
_TAGS = range(0xE0000, 0xE1000)
_ACCENTS = (
    range(0x0300, 0x0370),
    range(0x1AB0, 0x1B00),
    range(0x1DC0, 0x1E00),
    range(0x20D0, 0x2100),
    range(0xFE20, 0xFE30),
)
_SYLLABLES = range(0xAC00, 0xD7A4)
SPACED = (Form.FOLDED, Form.SKELETON)
_BLANK = "\u2800"  # a Braille pattern without a dot: seen as a space, though it is none
_ASCII_SPACES = {code: " " for code in range(128) if chr(code).isspace()}
_REPEATED_SPACES = re.compile("(?<= ) +")


@lru_cache(maxsize=16_384)
def shape(char: str, form: Form) -> str:
    """What `char` reads as in `form`: usually one character, none for an invisible one, several for a ligature."""
    if form is Form.RAW:
        return char
    if form is Form.COMPAT:
        return "".join(part for part in unicodedata.normalize("NFKC", char) if not _is_invisible(part))
    if ord(char) in _SYLLABLES:
        return char
    if char.isspace() or char == _BLANK:
        return " "
    parts = unicodedata.normalize("NFKD", char).casefold()
    parts = unicodedata.normalize("NFKD", parts)
    kept = "".join(part for part in parts if not _is_invisible(part) and not _is_accent(part))
    return kept.translate(LOOKALIKES) if form is Form.SKELETON else kept


class Reading:
    """A whole text in one form: `formed`, and the way back to the places of the original."""

    def __init__(self, text: str, form: Form) -> None:
        self._text = text
        self._shapes: dict[str, str] | None = None  # None: every character reads as one
        if form is Form.RAW or (form is Form.COMPAT and text.isascii()):
            self._plain = text
        elif text.isascii():
            self._plain = text.lower().translate(_ASCII_SPACES)
        else:
            shapes = {char: shape(char, form) for char in set(text)}
            self._plain = text.translate({ord(char): read for char, read in shapes.items()})
            self._shapes = shapes if any(len(read) != 1 for read in shapes.values()) else None
        repeated = form in SPACED and "  " in self._plain
        self.formed = _REPEATED_SPACES.sub("", self._plain) if repeated else self._plain

    @cached_property
    def offsets(self) -> Sequence[int]:
        """Where in the original each character of `formed` stands. Made when asked for: clean texts need none."""
        plain: Sequence[int] = range(len(self._text))
        if self._shapes is not None:
            shapes = self._shapes
            plain = array("I", [index for index, char in enumerate(self._text) for _ in shapes[char]])
        if len(self.formed) == len(self._plain):
            return plain
        kept = array("I")
        at = 0
        for run in _REPEATED_SPACES.finditer(self._plain):
            kept.extend(plain[at : run.start()])
            at = run.end()
        kept.extend(plain[at:])
        return kept


def is_repeated_space(previous: str, char: str) -> bool:
    """Is `char`, after `previous`, a space of a run that another one stands for? (FOLDED and SKELETON)"""
    return char == " " == previous


def fold(text: str, *, form: Form = Form.FOLDED) -> str:
    """`text` in a folded form."""
    return Reading(text, form).formed


def _is_invisible(char: str) -> bool:
    code = ord(char)
    if code < 0xAD:
        return False
    return code in _INVISIBLE or code in _TAGS or unicodedata.category(char) == "Cf"


def _is_accent(char: str) -> bool:
    code = ord(char)
    return code >= 0x0300 and any(code in accents for accents in _ACCENTS)
