"""`manage.py eval_safety`: precision, recall and latency of the guardrail rules, on labelled texts made from a seed.

JSON lines on stdout (`--json`), tables on stderr: the scores, the misses and false alarms, and what the rules do not
claim to see. Needs no platform.
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from infra.bench.stats import percentile
from infra.eval_safety.samples import families
from infra.eval_safety.score import EXACT, Score, by_kind, measures, score, shown, wilson

EXAMPLES = 50
EXAMPLES_MAX = 10_000
LISTED_MAX = 40  # of the misses and false alarms of one kind
BEYOND_MAX = 4  # of what a rule does not claim to see


class Command(BaseCommand):
    """One run: the same seed gives the same texts."""

    help = "Score the guardrail rules on labelled texts: precision, recall, latency, misses, false alarms."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print the measures as JSON lines on stdout")
        parser.add_argument("--seed", type=int, default=0, help="of the texts (0)")
        parser.add_argument("--examples", type=_examples, default=EXAMPLES, help="texts of each label in a family (50)")

    def handle(self, *args: Any, **options: Any) -> None:
        console = Console(stderr=True, width=None if sys.stderr.isatty() else 150, highlight=False)
        made = families(seed=options["seed"], examples=options["examples"])
        scores = [score(family, monotonic=time.perf_counter) for family in made]
        if options["json"]:
            for line in measures(scores):
                self.stdout.write(line.as_line())
        print_scores(scores, console=console)
        for one in by_kind(scores):
            _list(f"{one.kind}: missed", one.misses, console)
            _list(f"{one.kind}: false alarms", one.false_alarms, console)
        console.print("\nWhat heuristics do not see, and do not claim to: found by luck only")
        for one in scores:
            if one.unseen:
                console.print(f"  {one.kind} {one.what}: {one.unseen_found} of {one.unseen} found")
                _list("", one.beyond, console, most=BEYOND_MAX)
        for kind, why in EXACT.items():
            console.print(f"  {kind}: not scored, {why}")


def print_scores(scores: Sequence[Score], *, console: Console) -> None:
    """One row a kind, then one a part of it."""
    table = Table(title="guardrail rules on labelled texts", title_justify="left")
    for heading in ("kind", "part", "texts", "precision", "recall", "p50 ms", "p99 ms"):
        table.add_column(heading, justify="left" if heading in ("kind", "part") else "right", no_wrap=True)
    parts = [one for one in scores if one.what != "all"]
    for one in (*by_kind(scores), *parts):
        table.add_row(
            one.kind,
            one.what,
            str(len(one.spent)),
            _with_interval(one.found, one.found + one.alarms),
            _with_interval(one.found, one.found + one.missed),
            *(f"{percentile(one.spent, percent=percent):.3f}" for percent in (50, 99)),
        )
    console.print(table)


def _with_interval(part: int, whole: int) -> str:
    if not whole:
        return ""
    low, high = wilson(part, whole)
    return f"{part / whole:.3f} ({low:.3f}-{high:.3f})"


def _list(title: str, texts: Sequence[str], console: Console, *, most: int = LISTED_MAX) -> None:
    """Each text once, with how often."""
    counts: dict[str, int] = {}
    for text in texts:
        counts[shown(text)] = counts.get(shown(text), 0) + 1
    if title and counts:
        console.print(f"\n{title}: {len(texts)}")
    for text, count in list(counts.items())[:most]:
        console.print(f"    {escape(text)}{f'  x{count}' if count > 1 else ''}")
    if len(counts) > most:
        console.print(f"    … and {len(counts) - most} more")


def _examples(text: str) -> int:
    value = int(text)
    if not 1 <= value <= EXAMPLES_MAX:
        raise ValueError(f"from 1 to {EXAMPLES_MAX}")
    return value
