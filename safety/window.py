"""Step 4, GUARDRAIL: the output window. The worker feeds it an engine's text before anything is logged or published.

Invariants:
- No character of a match of a blocking or redacting rule leaves, however the text is cut into pieces.
- A character is held back only while some continuation would make it part of a match; else it leaves at once.
- What leaves is a function of each channel's whole text alone. Channels share nothing but a block, which ends them all.
"""

from collections.abc import Callable
from dataclasses import dataclass

from safety.policy import CompiledPolicy
from safety.rules.cover import Cover, Tally
from safety.rules.tracker import Hit, Tracker
from safety.verdicts import Action, RuleState, Stage, Verdict


@dataclass(frozen=True, slots=True)
class Released:
    """Text that may leave now. After `blocked` nothing of this request leaves any more, on any channel."""

    text: str
    blocked: bool


class OutputWindow:
    """One request's output. `channel` names one text of it: "0:content", "0:reasoning", "0:tool:1" … (choice first).

    `monotonic` gives seconds; it is read around the work so that verdicts can say what the guard cost.
    """

    def __init__(self, policy: CompiledPolicy, *, monotonic: Callable[[], float]) -> None:
        self._policy = policy
        self._monotonic = monotonic
        self._channels: dict[str, _Channel] = {}
        self._finished: set[str] = set()
        self._counts = [0] * len(policy.rules)
        self._blocked_by: int | None = None
        self._spent = 0.0

    def feed(self, channel: str, text: str) -> Released:
        """Take the next piece of a channel's text. Raises ValueError after the channel's `finish`."""
        return self._work(channel, text, last=False)

    def finish(self, channel: str) -> Released:
        """The channel's text has ended: what was only waiting leaves. Again for a finished channel: nothing."""
        if channel in self._finished:
            return Released("", self.blocked)
        released = self._work(channel, "", last=True)
        self._finished.add(channel)
        self._retire(channel)
        return released

    @property
    def blocked(self) -> bool:
        return self._blocked_by is not None

    def held(self, channel: str) -> int:
        """Characters of a channel that came in, and neither left nor were replaced."""
        state = self._channels.get(channel)
        return 0 if state is None else state.held

    @property
    def spent_us(self) -> int:
        """Microseconds spent in this window so far."""
        return round(self._spent * 1_000_000)

    @property
    def verdicts(self) -> tuple[str, ...]:
        """A line per output rule, true as of now; a rule that a block kept from the rest of the text says `stopped`."""
        return tuple(self._verdict(number).line() for number in self._policy.pure(Stage.OUTPUT))

    def _work(self, channel: str, text: str, *, last: bool) -> Released:
        if channel in self._finished:
            raise ValueError(f"channel {channel} is finished")
        if self.blocked:
            return Released("", blocked=True)
        began = self._monotonic()
        state = self._channels.get(channel)
        if state is None:
            state = self._channels[channel] = _Channel(self._policy)
        released = state.run(text, last=last)
        self._blocked_by = state.blocked_by
        self._spent += self._monotonic() - began
        return Released(released, self.blocked)

    def _retire(self, channel: str) -> None:
        """Keep the counts of a finished channel, not its state."""
        state = self._channels.pop(channel, None)
        if state is not None:
            for number in range(len(self._counts)):
                self._counts[number] += state.count(number)

    def _verdict(self, number: int) -> Verdict:
        rule = self._policy.rules[number]
        hits = self._counts[number] + sum(state.count(number) for state in self._channels.values())
        stopped = self._blocked_by not in (None, number)
        return Verdict(
            rule=rule.name,
            stage=Stage.OUTPUT,
            action=rule.action,
            state=RuleState.STOPPED if stopped else RuleState.RAN,
            hits=hits,
            acted=hits > 0 and rule.action is not Action.FLAG,
            shadow=rule.intended,
        )


class _Channel:
    """One text: where its matches are, what of it was released."""

    __slots__ = ("_actions", "_cover", "_replacements", "_tallies", "_tracker", "blocked_by")

    def __init__(self, policy: CompiledPolicy) -> None:
        self._tracker = Tracker(policy.output_plan)
        self._cover = Cover()
        self._tallies: dict[int, Tally] = {}
        self._actions = [rule.action for rule in policy.rules]
        self._replacements = policy.replacements
        self.blocked_by: int | None = None

    @property
    def held(self) -> int:
        return self._cover.waiting

    def count(self, rule: int) -> int:
        tally = self._tallies.get(rule)
        return 0 if tally is None else tally.count

    def run(self, text: str, *, last: bool) -> str:
        """What may leave after `text` (and the end, if `last`)."""
        self._cover.append(text)
        for char in text:
            floor = self._tracker.floor
            hits = self._tracker.step(char)
            if hits and self._take(hits):
                return self._cover.release(floor, replacements=self._replacements)
        if last:
            floor = self._tracker.floor
            if self._take(self._tracker.finish()):
                return self._cover.release(floor, replacements=self._replacements)
        return self._cover.release(self._tracker.floor, replacements=self._replacements)

    def _take(self, hits: list[Hit]) -> bool:
        """Note the hits. True when one of them blocks: then only what was clear before them may still leave."""
        blocking = [rule for rule, _ in hits if self._actions[rule] is Action.BLOCK]
        for rule, span in hits:
            tally = self._tallies.setdefault(rule, Tally())
            tally.add(span, settled=self._tracker.settled(rule))
        if blocking:
            self.blocked_by = min(blocking)
            return True
        for rule, span in hits:
            if self._actions[rule] is Action.REDACT:
                self._cover.add(span, rule=rule)
        return False
