"""Words of a client, shown back to it in a message, and kept without its secrets. Pure.

Invariant: what is shown is short, printable text in backticks: no control character, no half of a surrogate pair, no
spelling of a programming language.
"""

import re

SHOWN_MAX = 100
_UNSHOWN = "\N{REPLACEMENT CHARACTER}"
_KEY = re.compile(r"weir_[0-9A-Za-z]{20,}")
_PARAMETER = re.compile(r"((?:token|key|secret|password|authorization)=)[^&\s\"']+", re.IGNORECASE)


def shown(text: str, *, most: int = SHOWN_MAX) -> str:
    """`text` in backticks, at most `most` characters of it; what cannot be seen is U+FFFD, a rest an ellipsis."""
    kept = "".join(char if char.isprintable() else _UNSHOWN for char in text[:most])
    return f"`{kept}…`" if len(text) > most else f"`{kept}`"


def redacted(text: str) -> str:
    """`text` without API keys, and without the values of parameters that are called like secrets."""
    return _PARAMETER.sub(r"\1…", _KEY.sub("weir_…", text))
