"""Step 4, GUARDRAIL, for the worker: one guard per request over the pure window and, if asked for, the validator pool.

    guard = OutputGuard(policy, pool, monotonic=clock.monotonic)
    released = await guard.feed("0:content", delta)     # publish released.text; stop the engine if released.blocked
    released = await guard.finish("0:content")          # once per channel, before its finish_reason
    guard.verdicts                                       # lines for `end`, complete after the last finish
"""

from collections.abc import Callable

from safety.engines.pool import ValidatorPool
from safety.policy import CompiledPolicy
from safety.window import Released


class OutputGuard:
    def __init__(
        self, policy: CompiledPolicy | None, pool: ValidatorPool | None, *, monotonic: Callable[[], float]
    ) -> None: ...

    async def feed(self, channel: str, text: str) -> Released: ...

    async def finish(self, channel: str) -> Released: ...

    @property
    def blocked(self) -> bool: ...

    @property
    def verdicts(self) -> tuple[str, ...]: ...

    @property
    def spent_us(self) -> int: ...
