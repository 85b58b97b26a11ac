"""How a run is told: a table by round, one by kind of fault, and one JSON line. Called by `manage.py chaos`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from infra.chaos.round import Result

_SHOWN_MAX = 20  # violations of a round; the JSON line has them all


def print_result(results: Sequence[Result], *, console: Console) -> None:
    """The tables, then every violation with its round's seed and its evidence."""
    table = Table(title="rounds")
    for column in (
        "round",
        "seed",
        "faults",
        "calls",
        "ended",
        "output tokens",
        "of attempt logs",
        "of frames",
        "s",
        "",
    ):
        table.add_column(column, overflow="fold")
    for number, result in enumerate(results, start=1):
        ended = " ".join(f"{count} {name}" for name, count in sorted(result.outcomes.items()))
        verdict = "[green]held[/]" if not result.violations else f"[red]{len(result.violations)} broken[/]"
        told = (result.sums.get(name, 0) for name in ("billed_tokens", "attempt_log_tokens", "from_frames_tokens"))
        cells = (number, result.plan.seed, escape("; ".join(result.hit)), len(result.calls), ended, *told)
        table.add_row(*(str(cell) for cell in cells), f"{result.seconds:.0f}", verdict)
    console.print(table)
    kinds = Table(title="kinds of fault")
    for column in ("fault", "times", "rounds that broke"):
        kinds.add_column(column)
    times, broke = _by_kind(results)
    for name in sorted(times):
        kinds.add_row(name, str(times[name]), str(broke[name]))
    console.print(kinds)
    for result in results:
        for violation in result.violations[:_SHOWN_MAX]:
            console.print(f"[red]seed {result.plan.seed}[/] {escape(str(violation))}")
        for line in result.evidence:
            console.print(f"  {escape(line)}", soft_wrap=True)
        if result.violations:
            calls = len(result.plan.calls)
            console.print(f"  again: manage.py chaos --rounds 1 --seed {result.plan.seed} --calls {calls}")


def json_line(results: Sequence[Result], *, seed: int, engine: str) -> str:
    """One JSON object: what was done, the sums, and what was broken."""
    times, broke = _by_kind(results)
    ends = Counter(call.connections[-1].end for result in results for call in result.calls if call.connections)
    outcomes: Counter[str] = Counter()
    for result in results:
        outcomes.update(result.outcomes)
    totals = ("billed_tokens", "attempt_log_tokens", "from_frames_tokens", "told_tokens")
    document: dict[str, Any] = {
        "chaos": 1,
        "engine": engine,
        "seed": seed,
        "rounds": len(results),
        "calls": sum(len(result.calls) for result in results),
        "connections": sum(len(call.connections) for result in results for call in result.calls),
        "accepted": sum(len(result.accepted) for result in results),
        "outcomes": dict(outcomes),
        "client_ends": dict(ends),
        "faults": {name: {"times": times[name], "broken_rounds": broke[name]} for name in sorted(times)},
        **{name: sum(int(result.sums.get(name, 0)) for result in results) for name in totals},
        "violations": [
            {"seed": result.plan.seed, "rule": item.rule, "request_id": item.request_id, "detail": item.detail}
            for result in results
            for item in result.violations
        ],
    }
    return json.dumps(document)


def _by_kind(results: Sequence[Result]) -> tuple[Counter[str], Counter[str]]:
    """Times that each fault hit something, and in how many broken rounds."""
    times: Counter[str] = Counter()
    broke: Counter[str] = Counter()
    for result in results:
        names = [told.partition(": ")[0] for told in result.hit if ": spared" not in told]
        times.update(names)
        if result.violations:
            broke.update(set(names))
    return times, broke
