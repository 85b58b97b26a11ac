"""Bench `safety`: what the guardrails cost a request, by policy, and how quick each kind of rule is.

Called by `manage.py bench safety`. There is no platform here: the gateway's and the worker's own guard
(`check_prompt_with`, `OutputGuard`) is fed with made prompts and made tokens in this process, so the figures are of the
guard alone and of no queue, socket or model. Every request is answered once under each policy before the next one, in
an order that turns, so all policies meet the same moods of the machine.

- `added_ttft_p99_ms`: time in the prompt gate and in the window until the first text left, less that without a policy.
  Tokens that the window waited for are told apart (`first_text_tokens_p99`): how long they take is the engine's pace.
- `added_itl_ms`: mean time in the window for a token, less that without.
- `…_cpu_…`: the same in processor time of this process: what a machine with a free core would show.
- `throughput`: tokens a second of STREAMS streams whose engine takes STEP_MS for a step of all and then waits until
  each token has passed the window. Arithmetic on the measured time of a token; an engine that does not wait loses less.
- `held_chars`: what is held back after each token.
- by kind: megabytes a second of processor time, of one core, with one rule of that kind.

Invariants: no rule blocks, so every answer is whole; a rule that did not run fails the run.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from statistics import fmean
from typing import Any

from infra.bench.output import Measure
from infra.bench.stats import describe, percentile
from safety.engines.pool import ValidatorPool
from safety.guard import check_prompt_with
from safety.policy import CompiledPolicy
from safety.rules.pii import INTERNATIONAL, NATIONAL
from safety.rules.secrets import FORMATS
from safety.stream import OutputGuard

NAME = "safety"
NONE = "none"
TTFT_AIM_MS, ITL_AIM_MS, THROUGHPUT_AIM = 3.0, 0.2, 0.9
AIMED = "typical"
STREAMS, STEP_MS = 32, 20.0
CHANNEL = "0:content"
_TALK = """
the of and to in is that for it as was with be by on not he his but at are this have from or had an they which one
you were all her she there would their we him been has when who will no more if out so what up said about into than
them can only other time new some could these two may first then do any like my now over such our man me even most
made after also did many off before must well back through years where much your way down should because long each
just state people secret token password system server number account phone email support instructions
"""
_REGEXES = (
    r"(?i)\bproject[ -]bluebird\b", r"\bACME-[0-9]{6}\b", r"(?i)\binternal use only\b", r"\bTICKET-[0-9]{3,8}\b",
    r"(?i)\bconfidential: [a-z ]{1,40}",
)  # fmt: skip


class NotWhole(Exception):
    """A rule did not run, or an answer was cut; the text says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`requests` are answered under each policy; `kind_chars` of text go through each kind of rule."""

    requests: int = 200
    tokens: int = 200
    prompt_words: int = 200
    kind_chars: int = 200_000
    seed: int = 1

    @property
    def steps(self) -> int:
        """How many parts the plan has, for the progress bar."""
        return self.requests + len(kinds())


@dataclass(slots=True, kw_only=True)
class Side:
    """What was seen under one policy. Seconds; characters held after each token; tokens before the first text left."""

    ttft: list[float] = field(default_factory=list)
    ttft_cpu: list[float] = field(default_factory=list)
    feeds: list[float] = field(default_factory=list)
    feeds_cpu: float = 0.0
    held: list[int] = field(default_factory=list)
    first_tokens: list[int] = field(default_factory=list)

    @property
    def itl_ms(self) -> float:
        return fmean(self.feeds) * 1_000

    @property
    def itl_cpu_ms(self) -> float:
        return self.feeds_cpu / len(self.feeds) * 1_000

    @property
    def tokens_per_s(self) -> float:
        return STREAMS / (STEP_MS / 1_000 + STREAMS * fmean(self.feeds))


@dataclass(slots=True, kw_only=True)
class Found:
    """All of a whole run; speeds by kind are megabytes a second of processor time, as prompt and as output."""

    plan: Plan
    sides: dict[str, Side]
    speeds: dict[str, tuple[float, float]] = field(default_factory=dict)


def policies(*, validators: bool) -> dict[str, CompiledPolicy | None]:
    """By name; `guardrails-ai` where its validators are installed."""
    typical = [
        *(rule(f"regex-{at}", "regex", {"pattern": pattern}) for at, pattern in enumerate(_REGEXES)),
        rule("words", "ban_list", {"words": made_words(1_000)}),
        rule("secrets", "secrets", {}),
        rule("pii", "pii", {}),
    ]
    more = [rule(f"more-{at}", "regex", {"pattern": rf"(?i)\bcode{at}[ -][a-z]{{2,20}}\b"}) for at in range(20)]
    heavy = [
        *typical[:5],
        *more,
        rule("words", "ban_list", {"words": made_words(10_000)}),
        *(rule(kind, kind, config) for kind, config in kinds().items() if kind not in ("regex", "ban_list")),
    ]
    made: dict[str, CompiledPolicy | None] = {NONE: None, AIMED: _policy(typical), "heavy": _policy(heavy)}
    if validators:
        judge = rule("judge", "guardrails_ai", {"validator": "secrets_present", "deadline_ms": 10_000})
        made["guardrails-ai"] = _policy([*typical, judge])
    return made


def kinds() -> dict[str, dict[str, Any]]:
    """The configuration of a rule of each kind that reads a text while it flows, at its fullest."""
    return {
        "regex": {"pattern": _REGEXES[0]},
        "ban_list": {"words": made_words(1_000)},
        "secrets": {"formats": list(FORMATS)},
        "pii": {"kinds": [*INTERNATIONAL, *NATIONAL]},
        "urls": {"allow_domains": ["example.com"]},
        "charset": {"scripts": ["Latin"], "deny": ["control", "invisible", "tags"]},
        "length": {"chars_max": 1_000_000},
        "prompt_injection": {},
        "prompt_leak": {},
    }


def rule(name: str, kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "kind": kind, "stage": ["prompt", "output"], "action": "redact", "config": dict(config)}


def _policy(rules: Sequence[Mapping[str, Any]]) -> CompiledPolicy:
    return CompiledPolicy.compile({"id": "bench", "version": 1, "rules": list(rules)})


def made_words(count: int) -> list[str]:
    """Words and pairs of words that no language has, but with the beginnings of its own."""
    source = random.Random(count)  # noqa: S311 - repeatable words, no secret
    syllables = ("ba", "con", "de", "in", "ka", "lo", "man", "ne", "pro", "re", "sta", "the", "un", "ver", "wi", "zu")
    made: set[str] = set()
    while len(made) < count:
        word = "".join(source.choices(syllables, k=source.randint(3, 4))) + "x"
        made.add(f"{word} {source.choice(syllables)}q" if source.random() < 0.3 else word)
    return sorted(made)


def made_text(*, seed: int, words: int) -> str:
    """Talk with numbers, addresses, links and punctuation in it, and now and then what a rule looks for."""
    source = random.Random(seed)  # noqa: S311 - a repeatable text, no secret
    vocabulary = _TALK.split()
    parts = []
    for _ in range(words):
        chance = source.random()
        word = source.choice(vocabulary)
        if chance < 0.04:
            word = str(source.randint(1, 99_999))
        elif chance < 0.05:
            word = f"{word}{source.randint(1, 99)}@mail.example.org"
        elif chance < 0.055:
            word = f"https://docs.example.com/{word}"
        elif chance < 0.057:
            word = "4111 1111 1111 1111"
        parts.append(word + source.choice(("", "", "", "", ",", ".", ".\n")))
    return " ".join(parts)


def made_tokens(text: str) -> Iterator[str]:
    """Pieces as a tokenizer makes them: a word with the space before it, a long one in parts of five characters."""
    for number, word in enumerate(text.split(" ")):
        whole = word if number == 0 else f" {word}"
        for at in range(0, len(whole), 5):
            yield whole[at : at + 5]


async def run(*, plan: Plan, advance: Callable[[int], None]) -> Found:
    """The whole plan. Raises NotWhole, OSError, TimeoutError."""
    has_validators = find_spec("guardrails") is not None
    found = Found(plan=plan, sides={})
    pool = ValidatorPool()
    try:
        if has_validators:
            await pool.warm()
        chosen = policies(validators=has_validators)
        found.sides = {name: Side() for name in chosen}
        for policy in chosen.values():  # the first text of a policy makes what later ones find
            await _answer(policy, pool, plan, seed=-1, side=Side())
        names = list(chosen)
        for number in range(plan.requests):
            at = number % len(names)
            for name in names[at:] + names[:at]:
                await _answer(chosen[name], pool, plan, seed=plan.seed + number, side=found.sides[name])
            advance(1)
    finally:
        await pool.close()
    text = made_text(seed=plan.seed, words=plan.kind_chars // 4)[: plan.kind_chars]
    for kind, config in kinds().items():
        found.speeds[kind] = await _speed(_policy([rule(kind, kind, config)]), text)
        advance(1)
    return found


class _Watch:
    """Seconds since it was made or read, on the wall and of this thread's processor time."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.thread_time()

    def read(self) -> tuple[float, float]:
        wall, cpu = time.perf_counter(), time.thread_time()
        took = wall - self._wall, cpu - self._cpu
        self._wall, self._cpu = wall, cpu
        return took


async def _answer(policy: CompiledPolicy | None, pool: ValidatorPool, plan: Plan, *, seed: int, side: Side) -> None:
    """One request: its prompt through the gate, its tokens through the window."""
    prompt = made_text(seed=-seed - 2, words=plan.prompt_words)
    tokens = list(made_tokens(made_text(seed=seed, words=plan.tokens)))[: plan.tokens]
    watch = _Watch()
    if policy is not None:
        verdict = await check_prompt_with(policy, [prompt], pool=pool, monotonic=time.perf_counter)
        _must_have_run(verdict.verdicts)
    spent, spent_cpu = watch.read()
    first: int | None = None
    guard = OutputGuard(policy, pool, monotonic=time.perf_counter)
    for number, token in enumerate(tokens):
        watch.read()
        released = await guard.feed(CHANNEL, token)
        took, took_cpu = watch.read()
        side.feeds.append(took)
        side.feeds_cpu += took_cpu
        side.held.append(guard.held(CHANNEL))
        if first is None:
            spent, spent_cpu = spent + took, spent_cpu + took_cpu
            first = number if released.text else None
    watch.read()
    await guard.finish(CHANNEL)
    took, took_cpu = watch.read()
    if first is None:
        first, spent, spent_cpu = len(tokens), spent + took, spent_cpu + took_cpu
    _must_have_run(guard.verdicts)
    side.ttft.append(spent)
    side.ttft_cpu.append(spent_cpu)
    side.first_tokens.append(first)


def _must_have_run(lines: Sequence[str]) -> None:
    for line in lines:
        if " state=ran " not in line:
            raise NotWhole(line)


async def _speed(policy: CompiledPolicy, text: str) -> tuple[float, float]:
    """Megabytes of UTF-8 a second of processor time: as a prompt, as an answer of many tokens."""
    size = len(text.encode()) / 1e6
    clock = time.process_time
    await check_prompt_with(policy, [text[:1_000]], pool=None, monotonic=clock)
    began = clock()
    await check_prompt_with(policy, [text], pool=None, monotonic=clock)
    prompt = size / (clock() - began)
    guard = OutputGuard(policy, None, monotonic=clock)
    tokens = list(made_tokens(text))
    began = clock()
    for token in tokens:
        await guard.feed(CHANNEL, token)
    await guard.finish(CHANNEL)
    return prompt, size / (clock() - began)


def measures(found: Found) -> list[Measure]:
    """The lines of a whole run. Raises ValueError when nothing was measured."""
    bare = found.sides[NONE]
    lines = [_line(NONE, "throughput", bare.tokens_per_s, "tokens/s")]
    base_ms, base_cpu_ms = _p99_ms(bare.ttft), _p99_ms(bare.ttft_cpu)
    for name, side in found.sides.items():
        if name == NONE:
            continue
        lines += [
            _added(name, "added_ttft_p99_ms", _p99_ms(side.ttft), base_ms),
            _added(name, "added_ttft_cpu_p99_ms", _p99_ms(side.ttft_cpu), base_cpu_ms),
            _added(name, "added_itl_ms", side.itl_ms, bare.itl_ms),
            _added(name, "added_itl_cpu_ms", side.itl_cpu_ms, bare.itl_cpu_ms),
            replace(_line(name, "throughput", side.tokens_per_s, "tokens/s"), peer=NONE, peer_value=bare.tokens_per_s),
            _line(name, "first_text_tokens_p99", percentile(side.first_tokens, percent=99), "tokens"),
            _line(name, "held_chars_p50", percentile(side.held, percent=50), "characters"),
            _line(name, "held_chars_p99", percentile(side.held, percent=99), "characters"),
        ]
    for kind, speeds in found.speeds.items():
        for metric, value in zip(("prompt_mb_per_s", "output_mb_per_s"), speeds, strict=True):
            lines.append(Measure(bench=NAME, case={"kind": kind}, metric=metric, value=value, unit="MB/s"))
    return lines


def _line(policy: str, metric: str, value: float, unit: str) -> Measure:
    return Measure(bench=NAME, case={"policy": policy}, metric=metric, value=value, unit=unit)


def _added(policy: str, metric: str, whole: float, bare: float) -> Measure:
    return replace(_line(policy, metric, whole - bare, "ms"), peer=NONE, peer_value=bare, whole=whole)


def _p99_ms(seconds: Sequence[float]) -> float:
    return percentile([each * 1_000 for each in seconds], percent=99)


def record(found: Found) -> dict[str, list[tuple[str, str]]]:
    """The load, the spread under each policy, and the aims."""
    plan = found.plan
    load = f"{plan.requests} requests under each policy, {plan.prompt_words} words, {plan.tokens} tokens, one at a time"
    sections = {"load": [("requests", load), ("throughput", f"{STREAMS} streams, a step of the engine {STEP_MS:g} ms")]}
    if "guardrails-ai" not in found.sides:
        sections["load"].append(("guardrails-ai", "not installed, so not measured"))
    for name, side in found.sides.items():
        sections[f"policy {name}"] = [
            ("to the first text", describe([each * 1_000 for each in side.ttft], unit="ms", digits=3)),
            ("a token", describe([each * 1e6 for each in side.feeds], unit="µs")),
            ("held back", describe([float(each) for each in side.held], unit="characters", digits=0)),
        ]
    return {**sections, "aims": verdict_rows(measures(found))}


def verdict_rows(lines: Sequence[Measure]) -> list[tuple[str, str]]:
    """Aims against what was seen, in words. They are the `typical` policy's; the others are told beside it."""
    rows = []
    for line in lines:
        name = f"{line.metric} policy={line.case.get('policy')}"
        if line.metric == "added_ttft_p99_ms":
            rows.append((name, _verdict(line.value, TTFT_AIM_MS, met=line.value <= TTFT_AIM_MS)))
        elif line.metric == "added_itl_ms":
            rows.append((name, _verdict(line.value, ITL_AIM_MS, met=line.value <= ITL_AIM_MS)))
        elif line.metric == "throughput" and line.ratio is not None:
            rows.append((name, _verdict(line.ratio, THROUGHPUT_AIM, met=line.ratio >= THROUGHPUT_AIM)))
    return rows


def _verdict(value: float, aim: float, *, met: bool) -> str:
    return f"{value:,.3f}, aim {aim:g}: {'met' if met else 'missed'}"
