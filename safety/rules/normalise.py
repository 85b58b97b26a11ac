"""Forms of a text that a rule reads, made character by character so that they can be made while streaming.

RAW is the text. COMPAT undoes look-alike encodings (full-width digits, ligatures) and drops what cannot be seen
(zero-width, soft hyphens, variation selectors). FOLDED also ignores case and Latin-style accents, and every white
space is a space; SKELETON also reads a letter of another script as the ASCII letter it looks like. Because a form maps
one code point at a time, a span of a form is a span of the original; a sequence that only composes to another character
(Korean letters to a syllable) is not composed. `read` makes one space of a run, as who streams does by itself.
"""

import unicodedata
from functools import lru_cache

from safety.rules.lookalikes import LOOKALIKES
from safety.rules.port import Form

_INVISIBLE = frozenset(
    [0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0, *range(0x180B, 0x1810), *range(0xFE00, 0xFE10)]
)
_SELECTORS = range(0xE0100, 0xE01F0)
_ACCENTS = (
    range(0x0300, 0x0370),
    range(0x1AB0, 0x1B00),
    range(0x1DC0, 0x1E00),
    range(0x20D0, 0x2100),
    range(0xFE20, 0xFE30),
)
_SYLLABLES = range(0xAC00, 0xD7A4)
_SPACED = (Form.FOLDED, Form.SKELETON)
_BLANK = "\u2800"  # a Braille pattern without a dot: seen as a space, though it is none
_ASCII_SPACES = {code: " " for code in range(128) if chr(code).isspace()}


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


def read(text: str, form: Form) -> tuple[str, list[int] | None]:
    """The whole text in `form`, with the original offset of each of its characters (None: they are the same)."""
    if form is Form.RAW or (form is Form.COMPAT and text.isascii()):
        return text, None
    if text.isascii():
        folded = text.lower().translate(_ASCII_SPACES)
        if "  " not in folded:
            return folded, None
    parts: list[str] = []
    offsets: list[int] = []
    for index, char in enumerate(text):
        for part in shape(char, form):
            if form in _SPACED and is_repeated_space(parts[-1] if parts else "", part):
                continue
            parts.append(part)
            offsets.append(index)
    return "".join(parts), offsets


def is_repeated_space(previous: str, char: str) -> bool:
    """Is `char`, after `previous`, a space of a run that another one stands for? (FOLDED and SKELETON)"""
    return char == " " == previous


def fold(text: str, *, form: Form = Form.FOLDED) -> str:
    """`text` in a folded form."""
    return read(text, form)[0]


def _is_invisible(char: str) -> bool:
    code = ord(char)
    if code < 0xAD:
        return False
    return code in _INVISIBLE or code in _SELECTORS or unicodedata.category(char) == "Cf"


def _is_accent(char: str) -> bool:
    code = ord(char)
    return code >= 0x0300 and any(code in accents for accents in _ACCENTS)
