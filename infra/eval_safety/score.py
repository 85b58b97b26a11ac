"""Runs the families through the prompt gate and counts: what was found, what was not, what should not have been.

The gate is the one that serves (`safety.guard.check_prompt`), a policy of one redacting rule. A value counts as found
when no LEFT_CHARS of it in a row are left; a text written by hand, when the rule found anything. Precision and recall
have Wilson's interval (JASA 22(158), 1927): it holds for few samples and for none missed, where the usual is empty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from infra.bench.output import Measure
from infra.bench.stats import percentile
from infra.eval_safety.samples import Family, Sample
from safety.guard import check_prompt
from safety.policy import CompiledPolicy

NAME = "eval_safety"
Z95 = 1.959964
SHOWN_CHARS = 90
LEFT_CHARS = 8
# What is exact by its definition, and therefore not scored.
EXACT = {
    "regex": "the tenant's own pattern",
    "length": "a count of characters",
    "json_schema": "a validator's answer",
    "guardrails_ai": "an installed validator's own claim",
}
_BY_HAND = frozenset({"prompt_injection", "prompt_leak", "urls", "charset"})


@dataclass(slots=True, kw_only=True)
class Score:
    """Counts of one kind, or of one part of it. `spent` are milliseconds by text."""

    kind: str
    what: str
    found: int = 0
    missed: int = 0
    alarms: int = 0
    quiet: int = 0
    unseen: int = 0
    unseen_found: int = 0
    spent: list[float] = field(default_factory=list)
    misses: list[str] = field(default_factory=list)
    false_alarms: list[str] = field(default_factory=list)
    beyond: list[str] = field(default_factory=list)  # unseen texts that were not found

    def add(self, other: Score) -> None:
        """Take in the counts of a part."""
        for name in ("found", "missed", "alarms", "quiet", "unseen", "unseen_found"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("spent", "misses", "false_alarms", "beyond"):
            getattr(self, name).extend(getattr(other, name))


def wilson(part: int, whole: int, *, z: float = Z95) -> tuple[float, float]:
    """The interval of a share. Raises ValueError without samples."""
    if not whole:
        raise ValueError("no samples, so no interval")
    share = part / whole
    middle = share + z * z / (2 * whole)
    spread = z * math.sqrt(share * (1 - share) / whole + z * z / (4 * whole * whole))
    below = 1 + z * z / whole
    return max(0.0, (middle - spread) / below), min(1.0, (middle + spread) / below)


def score(family: Family, *, monotonic: Callable[[], float]) -> Score:
    """Counts of one family."""
    rule = {"name": "rule", "kind": family.kind, "stage": ["prompt"], "action": "redact", "config": dict(family.config)}
    policy = CompiledPolicy.compile({"id": "eval", "version": 1, "rules": [rule]})
    told = Score(kind=family.kind, what=family.what)
    check_prompt(policy, ["warm up"], monotonic=monotonic)
    for sample in family.positives:
        if _is_found(family, policy, sample, told, monotonic):
            told.found += 1
        else:
            told.missed += 1
            told.misses.append(sample.text)
    for sample in family.negatives:
        if _is_found(family, policy, sample, told, monotonic):
            told.alarms += 1
            told.false_alarms.append(sample.text)
        else:
            told.quiet += 1
    for sample in family.unseen:
        told.unseen += 1
        if _is_found(family, policy, sample, told, monotonic):
            told.unseen_found += 1
        else:
            told.beyond.append(sample.text)
    return told


def _is_found(
    family: Family, policy: CompiledPolicy, sample: Sample, told: Score, monotonic: Callable[[], float]
) -> bool:
    began = monotonic()
    verdict = check_prompt(policy, [sample.text], monotonic=monotonic)
    told.spent.append((monotonic() - began) * 1_000)
    if verdict.redacted_texts is None:
        return False
    return family.kind in _BY_HAND or not sample.value or not is_left(sample.value, verdict.redacted_texts[0])


def is_left(value: str, text: str) -> bool:
    """Does `text` still hold LEFT_CHARS of `value` in a row, or all of a shorter one?"""
    size = min(LEFT_CHARS, len(value))
    return any(value[at : at + size] in text for at in range(len(value) - size + 1))


def by_kind(scores: Iterable[Score]) -> list[Score]:
    """The same, one for each kind."""
    kinds: dict[str, Score] = {}
    for one in scores:
        kinds.setdefault(one.kind, Score(kind=one.kind, what="all")).add(one)
    return list(kinds.values())


def measures(scores: Sequence[Score]) -> list[Measure]:
    """Lines of each kind, then of each part of a kind that has some."""
    lines = [line for one in by_kind(scores) for line in _measures(one, {"kind": one.kind})]
    for one in scores:
        if one.what != "all":
            lines += _measures(one, {"kind": one.kind, "what": one.what})
    return lines


def _measures(one: Score, case: Mapping[str, str]) -> list[Measure]:
    lines = []
    for name, part, whole in (
        ("precision", one.found, one.found + one.alarms),
        ("recall", one.found, one.found + one.missed),
        ("recall_unclaimed", one.unseen_found, one.unseen),
    ):
        if whole:
            low, high = wilson(part, whole)
            for metric, value in ((name, part / whole), (f"{name}_low", low), (f"{name}_high", high)):
                lines.append(Measure(bench=NAME, case=case, metric=metric, value=value, unit="share"))
            lines.append(Measure(bench=NAME, case=case, metric=f"{name}_of", value=whole, unit="texts"))
    for percent in (50, 99):
        value = percentile(one.spent, percent=percent)
        lines.append(Measure(bench=NAME, case=case, metric=f"added_latency_p{percent}_ms", value=value, unit="ms"))
    return lines


def shown(text: str) -> str:
    """A text on one line, printable, cut where it is long."""
    line = "".join(char if char.isprintable() else f"\\u{{{ord(char):x}}}" for char in text)
    return line if len(line) <= SHOWN_CHARS else line[: SHOWN_CHARS - 1] + "…"
