"""Forms of a text that a rule reads, made character by character so that they can be made while streaming.

RAW is the text. COMPAT undoes look-alike encodings (full-width digits, ligatures) and drops what cannot be seen
(zero-width, soft hyphens, variation selectors). FOLDED also ignores case and Latin-style accents. Because a form
maps one code point at a time, a span of a form is a span of the original; a sequence that only composes to another
character (Korean letters to a syllable) is not composed.
"""

import unicodedata
from functools import lru_cache

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


@lru_cache(maxsize=16_384)
def shape(char: str, form: Form) -> str:
    """What `char` reads as in `form`: usually one character, none for an invisible one, several for a ligature."""
    if form is Form.RAW:
        return char
    if form is Form.COMPAT:
        return "".join(part for part in unicodedata.normalize("NFKC", char) if not _is_invisible(part))
    if ord(char) in _SYLLABLES:
        return char
    parts = unicodedata.normalize("NFKD", char).casefold()
    parts = unicodedata.normalize("NFKD", parts)
    return "".join(part for part in parts if not _is_invisible(part) and not _is_accent(part))


def read(text: str, form: Form) -> tuple[str, list[int] | None]:
    """The whole text in `form`, with the original offset of each of its characters (None: they are the same)."""
    if form is Form.RAW:
        return text, None
    if text.isascii():
        return (text if form is Form.COMPAT else text.lower()), None
    shapes = [shape(char, form) for char in text]
    offsets = [index for index, part in enumerate(shapes) for _ in part]
    return "".join(shapes), offsets


def fold(text: str) -> str:
    """`text` in the FOLDED form."""
    return read(text, Form.FOLDED)[0]


def _is_invisible(char: str) -> bool:
    code = ord(char)
    if code < 0xAD:
        return False
    return code in _INVISIBLE or code in _SELECTORS or unicodedata.category(char) == "Cf"


def _is_accent(char: str) -> bool:
    code = ord(char)
    return code >= 0x0300 and any(code in accents for accents in _ACCENTS)
