"""Loads Lua scripts and holds them to their headers.

Every script is one operation in one file beside its Python. Its header is checked at load and again at each call:

    -- claim.lua: give the next request of the least-served tenant to one worker.
    -- KEYS 1 active zset tenant->service | 2 leases zset request->deadline_ms
    -- ARGV 1 now_ms int | 2 lease_ms int
    -- RETURNS {request_id, ticket} or nil.
    -- ATOMIC: two workers never hold one request.

KEYS or ARGV may end in `...` for a variable tail (`| 3... entries`), or be `none`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stores.redis import Client

_TITLE = re.compile(r"^-- (?P<name>[a-z_]+\.lua): \S.+")
_SLOT = re.compile(r"^(?P<index>\d+)(?P<tail>\.\.\.)? \S+")


class ScriptHeaderError(ValueError):
    """A script's header is missing, malformed, or does not fit a call."""


@dataclass(frozen=True, slots=True)
class Arity:
    """How many KEYS or ARGV a script takes; `tail` means that many or more (less the tail itself)."""

    count: int
    tail: bool

    def fits(self, given: int) -> bool:
        return given >= self.count - 1 if self.tail else given == self.count


@dataclass(frozen=True)
class LuaScript:
    """A script's text with its checked header."""

    name: str
    text: str
    keys: Arity
    args: Arity

    @classmethod
    def load(cls, path: Path) -> "LuaScript":
        """Read and check one file. Raises ScriptHeaderError."""
        text = path.read_text(encoding="utf-8")
        return cls.parse(name=path.name, text=text)

    @classmethod
    def parse(cls, *, name: str, text: str) -> "LuaScript":
        """Check the header of `text`. Raises ScriptHeaderError."""
        title = _TITLE.match(text)
        if title is None or title["name"] != name:
            raise ScriptHeaderError(f"{name} must begin with `-- {name}: what it does.`")
        header = _header(text)
        for label in ("KEYS", "ARGV", "RETURNS", "ATOMIC"):
            if label not in header:
                raise ScriptHeaderError(f"{name} has no `-- {label}` line")
        return cls(name=name, text=text, keys=_arity(name, header["KEYS"]), args=_arity(name, header["ARGV"]))

    def bind(self, redis: Client) -> "BoundScript":
        return BoundScript(script=self, redis=redis)


@dataclass(frozen=True)
class BoundScript:
    """A script on one client: `await bound(keys=…, args=…)`."""

    script: LuaScript
    redis: Client

    async def __call__(self, *, keys: Sequence[str], args: Sequence[str | bytes | int]) -> Any:
        """Run it. Raises ScriptHeaderError when the call does not fit the header, and redis.exceptions.RedisError."""
        if not self.script.keys.fits(len(keys)) or not self.script.args.fits(len(args)):
            raise ScriptHeaderError(
                f"{self.script.name} takes {self.script.keys} keys and {self.script.args} arguments, "
                f"got {len(keys)} and {len(args)}"
            )
        return await self.redis.run_script(self.script.text, keys=keys, args=args)


def load_scripts(folder: Path) -> dict[str, LuaScript]:
    """Every script of `folder` by its stem. Raises ScriptHeaderError."""
    return {path.stem: LuaScript.load(path) for path in sorted(folder.glob("*.lua"))}


def _header(text: str) -> dict[str, str]:
    """Label -> text of the leading comment block; a label's text runs on over following comment lines."""
    labels: dict[str, str] = {}
    current = ""
    for line in text.splitlines()[1:]:
        if not line.startswith("--"):
            break
        body = line[2:].strip()
        label, _, rest = body.partition(" ")
        label = label.rstrip(":")
        if label in ("KEYS", "ARGV", "RETURNS", "ATOMIC"):
            current = label
            labels[current] = rest
        elif current:
            labels[current] += " " + body
    return labels


def _arity(name: str, text: str) -> Arity:
    if text.strip().rstrip(".") == "none":
        return Arity(count=0, tail=False)
    slots = [_SLOT.match(part.strip()) for part in text.split(" | ")]
    for position, slot in enumerate(slots, start=1):
        if slot is None or int(slot["index"]) != position or (slot["tail"] and position != len(slots)):
            raise ScriptHeaderError(f"{name}: slot {position} of `{text}` is not numbered `{position} name …`")
    last = slots[-1]
    return Arity(count=len(slots), tail=bool(last and last["tail"]))
