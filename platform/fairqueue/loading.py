"""Step 5, QUEUE: loads the pool's scripts and puts the shared part behind each header.

Called by `queue`. Invariant: a script that moves a request between states does it by the shared functions, so that
every end is written the same way. Redis has no include, hence the text is joined here, before its digest is taken.
"""

from functools import cache
from pathlib import Path

from stores.lua import LuaScript, load_scripts

SCRIPTS = Path(__file__).with_name("scripts")


@cache
def load_pool_scripts() -> dict[str, LuaScript]:
    """Every script of the pool by name, with the shared functions in it. Raises ScriptHeaderError."""
    shared = "\n".join(script.text for script in load_scripts(SCRIPTS / "shared").values())
    return {name: _joined(script, shared) for name, script in load_scripts(SCRIPTS).items()}


def _joined(script: LuaScript, shared: str) -> LuaScript:
    lines = script.text.splitlines()
    body = next(number for number, line in enumerate(lines) if not line.startswith("--"))
    text = "\n".join([*lines[:body], "", shared, *lines[body:], ""])
    return LuaScript.parse(name=script.name, text=text)
