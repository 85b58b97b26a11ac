"""Step 4, GUARDRAIL, for the worker: one guard per request, over the pure window and, where the policy asks for it,
guardrails-ai validators.

    guard = OutputGuard(policy, pool, monotonic=clock.monotonic)
    released = await guard.feed("0:content", delta)     # publish released.text; stop the engine if released.blocked
    released = await guard.finish("0:content")          # once per channel, before its finish_reason
    guard.verdicts                                      # lines for `end`, complete after the last finish

Invariant: a validator judges a whole text, so with one on the output every channel waits for its end (buffer mode);
what it judges is what the pure rules would let leave. Without one `feed` and `finish` never wait.
"""

from collections.abc import Callable
from dataclasses import replace

from safety.engines.pool import ValidatorPool
from safety.guard import judged, run_call
from safety.policy import CompiledPolicy, CompiledRule
from safety.verdicts import Action, RuleState, Stage, Verdict
from safety.window import OutputWindow, Released

BUFFER_CHARS_MAX = 1_000_000


class OutputGuard:
    """`policy` None guards nothing and costs nothing."""

    def __init__(
        self, policy: CompiledPolicy | None, pool: ValidatorPool | None, *, monotonic: Callable[[], float]
    ) -> None:
        self._window = None if policy is None else OutputWindow(policy, monotonic=monotonic)
        self._rules = () if policy is None else policy.buffered(Stage.OUTPUT)
        self._pool = pool
        self._buffers: dict[str, list[str]] = {}
        self._buffered_chars = 0
        self._given_up: set[str] = set()
        self._results = {
            rule.name: judged(rule, Stage.OUTPUT, state=RuleState.RAN, hits=0, spent_us=0) for rule in self._rules
        }
        self._blocked_by: str | None = None

    async def feed(self, channel: str, text: str) -> Released:
        """Take the next piece of a channel's text; what may leave now."""
        if self._window is None:
            return Released(text, blocked=False)
        if self._blocked_by is not None:
            return Released("", blocked=True)
        released = self._window.feed(channel, text)
        if not self._rules:
            return released
        return self._keep(channel, released)

    async def finish(self, channel: str) -> Released:
        """A channel's text has ended; the rest that may leave, after the validators judged the whole."""
        if self._window is None:
            return Released("", blocked=False)
        if self._blocked_by is not None:
            return Released("", blocked=True)
        released = self._window.finish(channel)
        if not self._rules:
            return released
        kept = self._keep(channel, released)
        text = "".join(self._buffers.pop(channel, []))
        self._buffered_chars -= len(text)
        if kept.blocked or not text:
            return kept
        return await self._judge(channel, text)

    @property
    def blocked(self) -> bool:
        return self._blocked_by is not None or (self._window is not None and self._window.blocked)

    def held(self, channel: str) -> int:
        """Characters of a channel that came in and may not leave yet; in buffer mode, as the pure rules left them."""
        waiting = 0 if self._window is None else self._window.held(channel)
        return waiting + sum(map(len, self._buffers.get(channel, ())))

    @property
    def buffers(self) -> bool:
        """Does output wait for its end?"""
        return bool(self._rules)

    @property
    def spent_us(self) -> int:
        """Microseconds the guard has cost this request."""
        window = 0 if self._window is None else self._window.spent_us
        return window + sum(result.spent_us or 0 for result in self._results.values())

    @property
    def verdicts(self) -> tuple[str, ...]:
        """A line per output rule; a validator that a block kept from a text says `stopped`."""
        lines = () if self._window is None else self._window.verdicts
        return lines + tuple(self._told(result).line() for result in self._results.values())

    def _told(self, result: Verdict) -> Verdict:
        if self.blocked and result.state is RuleState.RAN and result.rule != self._blocked_by:
            return replace(result, state=RuleState.STOPPED)
        return result

    def _keep(self, channel: str, released: Released) -> Released:
        """Buffer what the window released. Beyond the bound no validator can judge it: each fails as it is told."""
        if released.blocked:
            self._buffers.clear()
            return Released("", blocked=True)
        if channel in self._given_up:
            return released
        self._buffers.setdefault(channel, []).append(released.text)
        self._buffered_chars += len(released.text)
        if self._buffered_chars <= BUFFER_CHARS_MAX:
            return Released("", blocked=False)
        return self._give_up(channel)

    def _give_up(self, channel: str) -> Released:
        """What follows on this channel is not judged either: it is no whole text."""
        for rule in self._judges(channel):
            self._note(rule, RuleState.REFUSED, hits=0, spent_us=0)
            if not rule.fails_open:
                self._blocked_by = rule.name
                self._buffers.clear()
                return Released("", blocked=True)
        self._given_up.add(channel)
        text = "".join(self._buffers.pop(channel, []))
        self._buffered_chars -= len(text)
        return Released(text, blocked=False)

    def _judges(self, channel: str) -> tuple[CompiledRule, ...]:
        return tuple(rule for rule in self._rules if not rule.answers_only or channel.endswith(":content"))

    async def _judge(self, channel: str, text: str) -> Released:
        for rule in self._judges(channel):
            outcome = await run_call(rule, text, self._pool)
            hit = outcome.state is RuleState.RAN and not outcome.passed
            self._note(rule, outcome.state, hits=int(hit), spent_us=outcome.spent_us)
            failed = outcome.state is not RuleState.RAN and not rule.fails_open
            if failed or (hit and rule.action is Action.BLOCK):
                self._blocked_by = rule.name
                self._buffers.clear()
                return Released("", blocked=True)
            if hit and rule.action is Action.REDACT:
                text = rule.replacement if outcome.fixed is None else outcome.fixed
        return Released(text, blocked=False)

    def _note(self, rule: CompiledRule, state: RuleState, *, hits: int, spent_us: int) -> None:
        """Add to the rule's verdict. A failure on one channel is not covered up by a success on another."""
        before = self._results[rule.name]
        worst = before.state if state is RuleState.RAN else state
        self._results[rule.name] = judged(
            rule, Stage.OUTPUT, state=worst, hits=before.hits + hits, spent_us=(before.spent_us or 0) + spent_us
        )
