"""Words of a client, shown back to it in a message. Pure. Used wherever an error names what was sent.

Invariant: what is shown is short, printable text in backticks: no control character, no half of a surrogate pair, no
spelling of a programming language.
"""

SHOWN_MAX = 100
_UNSHOWN = "\N{REPLACEMENT CHARACTER}"


def shown(text: str, *, most: int = SHOWN_MAX) -> str:
    """`text` in backticks, at most `most` characters of it; what cannot be seen is U+FFFD, a rest an ellipsis."""
    kept = "".join(char if char.isprintable() else _UNSHOWN for char in text[:most])
    return f"`{kept}…`" if len(text) > most else f"`{kept}`"
