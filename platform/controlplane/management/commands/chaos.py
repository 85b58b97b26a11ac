"""`manage.py chaos --rounds N --seed S`: breaks a private platform at random and proves that nothing was lost.

Tables and progress on stderr, with `--json` one JSON line on stdout. Exit code 1 when anything that must hold did not;
the seed of the round is printed, and `--rounds 1 --seed THAT` draws the same calls and faults again.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from infra.bench.instance import InstanceFailed
from infra.chaos.output import json_line, print_result
from infra.chaos.round import Result
from infra.chaos.run import run_chaos

_WIDTH = 160  # of what goes into a file


class Command(BaseCommand):
    """Chaos on a platform of its own; what runs already is never touched."""

    help = "Kill, freeze, restart and cut off the parts of a private platform under load, then check every book."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--rounds", type=_positive, default=5)
        parser.add_argument("--seed", type=int, default=1, help="the whole run is drawn from it")
        parser.add_argument("--calls", type=_positive, default=40, help="calls of clients in a round")
        parser.add_argument("--real", action="store_true", help="vLLM instead of the simulated engine; one worker")
        parser.add_argument("--logs", type=Path, help="copy the platform's logs to this folder when something broke")
        parser.add_argument("--json", action="store_true", help="one JSON line on stdout")

    def handle(self, *args: Any, **options: Any) -> None:
        engine = "vllm" if options["real"] else "simulated"
        console = Console(stderr=True, width=None if sys.stderr.isatty() else _WIDTH, highlight=False)
        # A background job begins with SIGINT ignored, and SIGTERM would leave a platform behind: both stop it whole.
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, signal.default_int_handler)
        rounds, calls = int(options["rounds"]), int(options["calls"])
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        try:
            with Progress(*columns, console=console) as progress:
                task = progress.add_task("starting a platform", total=rounds * calls)

                def told(number: int, result: Result) -> None:
                    broken = f", {len(result.violations)} broken" if result.violations else ""
                    progress.update(task, description=f"round {number} of {rounds}{broken}", completed=number * calls)
                    if not console.is_terminal or result.violations:
                        console.print(f"round {number}: seed {result.plan.seed}: {'; '.join(result.hit)}{broken}")
                    for violation in result.violations:  # at once: a long run may be ended before its table
                        console.print(f"  {violation}"[:2_000], markup=False)

                results = asyncio.run(
                    run_chaos(
                        rounds=rounds,
                        seed=options["seed"],
                        count=calls,
                        engine=engine,
                        told=told,
                        keep_logs=options["logs"],
                        progressed=lambda: progress.advance(task),
                    )
                )
        except (InstanceFailed, OSError, TimeoutError) as error:
            raise CommandError(f"chaos did not run whole: {error}") from error
        print_result(results, console=console)
        if options["json"]:
            sys.stdout.write(json_line(results, seed=options["seed"], engine=engine) + "\n")
            sys.stdout.flush()
        if any(result.violations for result in results):
            sys.exit(1)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(f"{value} is not positive")
    return value
