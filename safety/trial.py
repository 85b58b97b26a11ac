"""One text run through a policy to be looked at: what each rule says, and what leaves when. No request passes here.

`python -m safety.trial`, started by `trying`, reads one trial as JSON on stdin and writes what came of it on stdout.
The engine is the one that serves: `check_prompt_with`, `OutputGuard`. Invariants: the process opens no connection, and
neither writes nor says anything else; what is told of a rule is what its verdict says.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from safety.engines.pool import ValidatorPool
from safety.engines.process import NetworkGate
from safety.guard import check_prompt_with
from safety.policy import CompiledPolicy, PolicyError
from safety.stream import OutputGuard
from safety.verdicts import Stage
from stores.system import SystemClock

CHANNEL = "0:content"
_NICE = 10  # requests come first


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What one rule did. `latency_ms` is measured: at output of the rule alone, over what the guard was fed."""

    rule: str
    kind: str
    action: str
    shadow: str | None  # what it would do, were it not in shadow mode
    state: str
    hits: int
    acted: bool
    latency_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One chunk of an answer: its length, what left when it had come, and how many characters were held back then."""

    length: int
    released: str
    held: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Where a block ended an answer: in which chunk (0 = the first), and how many characters had left in all.

    `chunk` None: at the answer's end, when the whole was judged.
    """

    chunk: int | None
    released: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`text` is what the model reads, or what the client got. None = a prompt that is refused."""

    action: str
    blocked_by: str | None
    text: str | None
    rules: tuple[Told, ...]
    chunks: tuple[Piece, ...] = ()
    at_end: str = ""
    cut: Cut | None = None


async def try_prompt(
    policy: CompiledPolicy, text: str, *, pool: ValidatorPool | None, monotonic: Callable[[], float]
) -> Outcome:
    """What the gateway would make of a prompt of this one text."""
    verdict = await check_prompt_with(policy, [text], pool=pool, monotonic=monotonic)
    left = text if verdict.redacted_texts is None else verdict.redacted_texts[0]
    rules = [_told(policy, line, None) for line in verdict.verdicts]
    return Outcome(
        action=_action(rules, blocked=verdict.blocked, changed=left != text),
        blocked_by=verdict.blocked_by,
        text=None if verdict.blocked else left,
        rules=tuple(rules),
    )


async def try_output(
    policy: CompiledPolicy, text: str, chunks: Sequence[int], *, pool: ValidatorPool | None,
    monotonic: Callable[[], float],
) -> Outcome:  # fmt: skip
    """What the worker would let leave of an answer that comes in `chunks`; what they leave of it is one chunk more."""
    guard = OutputGuard(policy, pool, monotonic=monotonic)
    fed, pieces = [], []
    cut, at_end = None, ""
    for number, part in enumerate(cut_text(text, chunks)):
        released = await guard.feed(CHANNEL, part)
        fed.append(part)
        pieces.append(Piece(length=len(part), released=released.text, held=guard.held(CHANNEL)))
        if released.blocked:
            cut = number
            break
    if not guard.blocked:
        at_end = (await guard.finish(CHANNEL)).text
    left = "".join(piece.released for piece in pieces) + at_end
    alone = await _alone(policy, fed, monotonic)
    rules = [_told(policy, line, alone) for line in guard.verdicts]
    return Outcome(
        action=_action(rules, blocked=guard.blocked, changed=left != text),
        blocked_by=_blocked_by(rules) if guard.blocked else None,
        text=left,
        rules=tuple(rules),
        chunks=tuple(pieces),
        at_end=at_end,
        cut=Cut(chunk=cut, released=len(left)) if guard.blocked else None,
    )


def cut_text(text: str, chunks: Sequence[int]) -> Iterator[str]:
    """The text in pieces of these lengths, then the rest of it."""
    at = 0
    for length in chunks:
        yield text[at : at + length]
        at += length
    if at < len(text):
        yield text[at:]


async def _alone(policy: CompiledPolicy, fed: Sequence[str], monotonic: Callable[[], float]) -> dict[str, float]:
    """Milliseconds of each pure rule by itself, for the window measures all of them together."""
    spent = {}
    for number in policy.pure(Stage.OUTPUT):
        rule = policy.rules[number]
        guard = OutputGuard(CompiledPolicy(policy.policy_id, policy.version, (rule,)), None, monotonic=monotonic)
        for part in fed:
            await guard.feed(CHANNEL, part)
        await guard.finish(CHANNEL)
        spent[rule.name] = guard.spent_us / 1_000
    return spent


def _told(policy: CompiledPolicy, line: str, alone: dict[str, float] | None) -> Told:
    facts = dict(word.partition("=")[::2] for word in line.split(" "))
    name = facts["rule"]
    measured = int(facts["us"]) / 1_000 if "us" in facts else (alone or {}).get(name)
    return Told(
        rule=name,
        kind=next(rule.kind for rule in policy.rules if rule.name == name),
        action=facts["action"],
        shadow=facts.get("shadow"),
        state=facts["state"],
        hits=int(facts["hits"]),
        acted=facts["acted"] == "yes",
        latency_ms=measured,
    )


def _action(rules: Sequence[Told], *, blocked: bool, changed: bool) -> str:
    if blocked:
        return "block"
    if changed:
        return "redact"
    return "flag" if any(told.hits for told in rules) else "pass"


def _blocked_by(rules: Sequence[Told]) -> str | None:
    """A block ends the others, so the rule that made it is the one that acted and was not stopped."""
    return next(
        (
            told.rule
            for told in rules
            if told.acted and (told.action == "block" or told.state not in ("ran", "stopped"))
        ),
        None,
    )


async def run_trial(asked: dict[str, Any], *, monotonic: Callable[[], float]) -> dict[str, Any]:
    """What came of `{document, stage, text, chunks}`, or `{errors}` of a document that is no policy."""
    try:
        policy = CompiledPolicy.compile(asked["document"])
    except PolicyError as error:
        return {"errors": error.errors}
    pool = ValidatorPool()
    try:
        if asked["stage"] == Stage.PROMPT:
            outcome = await try_prompt(policy, asked["text"], pool=pool, monotonic=monotonic)
        else:
            outcome = await try_output(policy, asked["text"], asked["chunks"], pool=pool, monotonic=monotonic)
    finally:
        await pool.close()
    return {"outcome": asdict(outcome)}


def main() -> None:
    NetworkGate().close()
    os.nice(_NICE)
    asked = json.load(sys.stdin)
    json.dump(asyncio.run(run_trial(asked, monotonic=SystemClock().monotonic)), sys.stdout)


if __name__ == "__main__":
    main()
