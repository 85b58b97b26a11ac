"""A rule that a script keeps, and the script without it. Called by the test modules that see the rules bite."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fairqueue.loading import load_pool_scripts
from stores.lua import LuaScript
from tests.functional.fairqueue.conftest import Pool

Scenario = Callable[[Pool], Awaitable[bool]]


@dataclass(frozen=True)
class Rule:
    """`cut`, a text of the script, is what keeps the rule; `left` stands in its place where the rule is taken out."""

    holds: Scenario
    script: str
    cut: str
    left: str = ""

    def take_out(self, pool: Pool) -> None:
        script = load_pool_scripts()[self.script]
        assert script.text.count(self.cut) == 1
        without = LuaScript.parse(name=script.name, text=script.text.replace(self.cut, self.left))
        pool.queue._scripts[self.script] = without.bind(pool.redis)
