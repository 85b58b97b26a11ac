"""Step 5, QUEUE: loads the pool's scripts and puts the shared functions that each needs behind its header.

Called by `queue`. Invariant: a script that moves a request between states does it by the shared functions, so that
every end is written the same way. Redis has no include, hence the text is joined here, before its digest is taken;
and a script makes its functions anew at each call (a third of a short script's time), hence only what it needs.
"""

import re
from functools import cache
from pathlib import Path

from stores.lua import LuaScript, load_scripts

SCRIPTS = Path(__file__).with_name("scripts")

_DEFINED = re.compile(r"^local (?:function )?([\w, ]+?)(?:\(| =)", re.MULTILINE)
_WORD = re.compile(r"\w+")


@cache
def load_pool_scripts() -> dict[str, LuaScript]:
    """Every script of the pool by name, with the shared functions that it uses. Raises ScriptHeaderError."""
    shared = [part for script in load_scripts(SCRIPTS / "shared").values() for part in _parts(_split(script.text)[1])]
    return {name: _joined(script, shared) for name, script in load_scripts(SCRIPTS).items()}


def _joined(script: LuaScript, shared: list[str]) -> LuaScript:
    header, body = _split(script.text)
    needed: list[str] = []
    text = body
    for part in reversed(shared):  # a function uses only those above it
        if not _names(part).isdisjoint(_WORD.findall(text)):
            needed.insert(0, part)
            text += part
    return LuaScript.parse(name=script.name, text="\n\n".join([header, *needed, body]))


def _split(text: str) -> tuple[str, str]:
    """Header comment and what follows it."""
    header, _, body = text.partition("\n\n")
    return header, body


def _parts(body: str) -> list[str]:
    """The shared definitions, parted by empty lines."""
    return [part.strip("\n") for part in body.split("\n\n") if part.strip()]


def _names(part: str) -> set[str]:
    return {name for names in _DEFINED.findall(part) for name in names.split(", ")}
