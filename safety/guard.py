"""Step 4, GUARDRAIL: the prompt gate. Called by the gateway's admission with every text of a request: all messages,
all parts, whatever their role.

Invariant: a verdict names each prompt rule of the policy, in order, and says truly whether it ran. A rule that could
not run blocks, unless the policy says that it fails open.
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import itemgetter

from safety.engines.pool import Validation, ValidatorPool
from safety.policy import CompiledPolicy, CompiledRule
from safety.rules.cover import Cover
from safety.rules.port import Span
from safety.search import Prompt, find_matches
from safety.verdicts import Action, RuleState, Stage, Verdict

SEAM = "\n"  # what engines put between the texts of a message; to a ban list it is any white space
ON_LOOP_CHARS_MAX = 16_384
TEXT_CHARS = 256  # what a text costs besides its own, however short it is


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptVerdict:
    """`redacted_texts` has the length and order of the texts given, or is None when nothing changed.

    `blocked_by` is the first blocking rule of the policy.
    """

    blocked: bool
    blocked_by: str | None
    redacted_texts: tuple[str, ...] | None
    verdicts: tuple[str, ...]


def check_prompt(policy: CompiledPolicy, texts: Sequence[str], *, monotonic: Callable[[], float]) -> PromptVerdict:
    """Run the pure prompt rules over each text. `monotonic` gives seconds, read around each rule."""
    return _verdict(texts, *_run_pure(policy, texts, monotonic=monotonic))


async def check_prompt_with(
    policy: CompiledPolicy, texts: Sequence[str], *, pool: ValidatorPool | None, monotonic: Callable[[], float]
) -> PromptVerdict:
    """What the gateway awaits: the pure rules, then the policy's guardrails-ai rules on what the pure rules left.

    Long or many texts are read in a thread, so that no stream waits for them. A rule without a pool did not run, and
    fails as the policy says.
    """
    if sum(len(text) + TEXT_CHARS for text in set(texts)) > ON_LOOP_CHARS_MAX:
        results, redacted = await asyncio.to_thread(_run_pure, policy, texts, monotonic=monotonic)
    else:
        results, redacted = _run_pure(policy, texts, monotonic=monotonic)
    if not any(_blocks(result) for result in results):
        for rule in policy.buffered(Stage.PROMPT):
            result, redacted = await _run_validator(rule, redacted, pool)
            results.append(result)
            if _blocks(result):
                break
    ran = {result.rule for result in results}
    skipped = [_unseen(rule) for rule in policy.buffered(Stage.PROMPT) if rule.name not in ran]
    return _verdict(texts, [*results, *skipped], redacted)


async def judge_text(
    policy: CompiledPolicy, text: str, *, pool: ValidatorPool | None, monotonic: Callable[[], float]
) -> tuple[Verdict, ...]:
    """What each prompt rule of the policy says of one text, in their order; none of them keeps another from it.

    The pure rules run in a thread, so that no stream waits for a long text.
    """
    results, _ = await asyncio.to_thread(_run_pure, policy, [text], monotonic=monotonic)
    for rule in policy.buffered(Stage.PROMPT):
        results.append((await _run_validator(rule, [text], pool))[0])
    said = {result.rule: result for result in results}
    return tuple(said[rule.name] for rule in policy.rules if rule.name in said)


def _verdict(texts: Sequence[str], results: Sequence[Verdict], redacted: Sequence[str]) -> PromptVerdict:
    blocking = next((result.rule for result in results if _blocks(result)), None)
    changed = blocking is None and list(redacted) != list(texts)
    return PromptVerdict(
        blocked=blocking is not None,
        blocked_by=blocking,
        redacted_texts=tuple(redacted) if changed else None,
        verdicts=tuple(result.line() for result in results),
    )


def _blocks(result: Verdict) -> bool:
    """Did this rule stop the request, by a hit or by failing closed?"""
    return result.acted and (result.action is Action.BLOCK or result.state not in (RuleState.RAN, RuleState.STOPPED))


def _run_pure(
    policy: CompiledPolicy, texts: Sequence[str], *, monotonic: Callable[[], float]
) -> tuple[list[Verdict], list[str]]:
    """Verdicts of the pure rules, and the texts as they leave them. Redaction is by all rules at once."""
    results = []
    covers: list[list[tuple[int, Span]]] = [[] for _ in texts]
    prompts = {text: Prompt(text) for text in texts}  # the keys of tools' schemas are many and the same
    joined = Prompt(SEAM.join(texts)) if len(texts) > 1 else None
    for number in policy.pure(Stage.PROMPT):
        rule = policy.rules[number]
        began = monotonic()
        hits = 0
        found: dict[str, tuple[list[Span], int]] = {}
        for index, text in enumerate(texts):
            if text not in found:
                found[text] = find_matches(rule, prompts[text])
            spans, count = found[text]
            hits += count
            if rule.action is Action.REDACT:
                covers[index].extend((number, span) for span in spans)
            if hits and rule.action is Action.BLOCK:
                break
        if joined and rule.reads_phrases and not (hits and rule.action is Action.BLOCK):
            across = _across_seams(texts, find_matches(rule, joined)[0])
            hits += len(across)
            if rule.action is Action.REDACT:
                for index, span in _by_text(texts, across):
                    covers[index].append((number, span))
        results.append(_pure_verdict(rule, hits=hits, spent_us=round((monotonic() - began) * 1_000_000)))
    redacted = [_cover(policy, text, spans) if spans else text for text, spans in zip(texts, covers, strict=True)]
    return results, redacted


def _begins(texts: Sequence[str]) -> list[int]:
    """Where each text stands in the joined texts."""
    return list(accumulate((len(text) + len(SEAM) for text in texts[:-1]), initial=0))


def _across_seams(texts: Sequence[str], spans: Sequence[Span]) -> list[Span]:
    """Matches in the joined texts that no text holds alone; overlapping ones are one."""
    seams = _begins(texts)[1:]
    across: list[Span] = []
    for span in sorted(spans):
        if bisect_right(seams, span.start) == bisect_left(seams, span.end):
            continue
        if across and span.start < across[-1].end:
            across[-1] = Span(across[-1].start, max(across[-1].end, span.end))
        else:
            across.append(span)
    return across


def _by_text(texts: Sequence[str], spans: Sequence[Span]) -> Iterator[tuple[int, Span]]:
    """The part of each span of the joined texts that lies in each text."""
    begins = _begins(texts)
    for span in spans:
        for index in range(bisect_right(begins, span.start) - 1, bisect_left(begins, span.end)):
            start, end = max(span.start - begins[index], 0), min(span.end - begins[index], len(texts[index]))
            if start < end:
                yield index, Span(start, end)


def _pure_verdict(rule: CompiledRule, *, hits: int, spent_us: int) -> Verdict:
    return Verdict(
        rule=rule.name,
        stage=Stage.PROMPT,
        action=rule.action,
        state=RuleState.RAN,
        hits=hits,
        acted=hits > 0 and rule.action is not Action.FLAG,
        spent_us=spent_us,
        shadow=rule.intended,
    )


def _cover(policy: CompiledPolicy, text: str, spans: Sequence[tuple[int, Span]]) -> str:
    cover = Cover()
    cover.append(text)
    for number, span in sorted(spans, key=itemgetter(1)):
        cover.add(span, rule=number)
    return cover.release(len(text), replacements=policy.replacements)


async def _run_validator(
    rule: CompiledRule, texts: Sequence[str], pool: ValidatorPool | None
) -> tuple[Verdict, list[str]]:
    """Judge every text that is not empty; the first that cannot be judged decides the state."""
    left = list(texts)
    hits = spent = 0
    state = RuleState.RAN
    for index, text in enumerate(texts):
        if not text:
            continue
        outcome = await run_call(rule, text, pool)
        spent += outcome.spent_us
        if outcome.state is not RuleState.RAN:
            state = outcome.state
            break
        if not outcome.passed:
            hits += 1
            if rule.action is Action.REDACT:
                left[index] = rule.replacement if outcome.fixed is None else outcome.fixed
    result = judged(rule, Stage.PROMPT, state=state, hits=hits, spent_us=spent)
    return result, left


async def run_call(rule: CompiledRule, text: str, pool: ValidatorPool | None) -> Validation:
    """The pool's answer for a guardrails-ai rule; REFUSED where the process has no pool."""
    assert rule.call is not None
    if pool is None:
        return Validation(state=RuleState.REFUSED, passed=False, fixed=None, spent_us=0)
    return await pool.validate(rule.call, text)


def judged(rule: CompiledRule, stage: Stage, *, state: RuleState, hits: int, spent_us: int) -> Verdict:
    """The verdict of a guardrails-ai rule. One that did not run has acted if it fails closed."""
    hit = hits > 0 and rule.action is not Action.FLAG
    acted = hit if state is RuleState.RAN else not rule.fails_open
    return Verdict(
        rule=rule.name, stage=stage, action=rule.action, state=state, hits=hits, acted=acted, spent_us=spent_us,
        shadow=rule.intended,
    )  # fmt: skip


def _unseen(rule: CompiledRule) -> Verdict:
    """A rule that an earlier block spared."""
    ran = judged(rule, Stage.PROMPT, state=RuleState.RAN, hits=0, spent_us=0)
    return replace(ran, state=RuleState.STOPPED, spent_us=None)
