"""Which characters are part of words: by RE2's count, and by that of ban lists, which read every script."""

# Scripts written without spaces between words, or that glue endings on: every place there is a boundary.
_UNSPACED = (
    range(0x0E00, 0x0F00),
    range(0x1000, 0x1200),
    range(0x1780, 0x1800),
    range(0x2E80, 0xA4D0),
    range(0xAC00, 0xD7FC),
    range(0xF900, 0xFB00),
    range(0x20000, 0x323B0),
)
NEIGHBOURS = ("", "a", "\u00e9", " ")  # the beginning of a text, and a character of each kind that rules tell apart


def is_ascii_word(char: str) -> bool:
    """RE2's word character: ASCII letters, digits, underscore."""
    return char != "" and char.isascii() and (char.isalnum() or char == "_")


def is_word(char: str) -> bool:
    """A word character of a script that writes spaces."""
    if not char or not (char.isalnum() or char == "_"):
        return False
    code = ord(char)
    return code < 0x0E00 or not any(code in script for script in _UNSPACED)


def neighbour(char: str) -> int:
    """Index of the one of NEIGHBOURS that is to every rule what `char` is."""
    if not char:
        return 0
    if is_ascii_word(char):
        return 1
    return 2 if is_word(char) else 3
