"""`manage.py bench NAME`: runs one bench of infra/bench. JSON lines on stdout, table and record on stderr.

Uses the platform that runs from this clone when its engine is the one asked for; otherwise starts a private one in a
temporary state directory and stops it afterwards. The record says which. Exit code 0 only when the bench ran whole.
"""

from __future__ import annotations

import asyncio
import os
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import structlog
import uvloop
from django.core.management.base import BaseCommand, CommandError
from rich.console import Console

from controlplane.local.paths import Layout
from controlplane.management.progress import shown
from infra.bench.instance import Instance, InstanceFailed, private_instance
from infra.bench.load import Refused
from infra.bench.output import print_table
from infra.bench.record import print_record
from infra.bench.registry import BENCHES, Bench, BenchFailed, Finished, Options, engine_of, leaves

_WIDTH = 120  # of what goes into a file
SIMULATED = "simulated"
ENGINES = ("vllm", SIMULATED)


class Command(BaseCommand):
    """Benches; `--list` names them."""

    help = "Run a bench: one JSON object a line on stdout, table and record on stderr."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", nargs="?", choices=sorted(BENCHES), help="the bench to run")
        parser.add_argument("--list", action="store_true", help="name the benches and stop")
        add_load_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        if options["list"]:
            for bench in BENCHES.values():
                self.stdout.write(f"{bench.name:<12} {bench.about}")
            return
        if options["name"] is None:
            raise CommandError("name a bench, or use --list", returncode=2)
        names = ("engine", "requests", "concurrency", "max_tokens", "prompt_words")
        chosen = Options(**{name: options[name] for name in names}, traces=tuple(options["trace"]))
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
        console = Console(stderr=True, width=None if sys.stderr.isatty() else _WIDTH, highlight=False)
        try:
            bench = BENCHES[options["name"]]
            with _platform(chosen.engine, console) if bench.platform else nullcontext() as instance:
                finished = _run(bench, instance, chosen, console)
        except* (InstanceFailed, BenchFailed, Refused, OSError, TimeoutError) as failures:
            said = "; ".join(str(failure) or type(failure).__name__ for failure in leaves(failures))
            raise CommandError(f"bench {options['name']} did not run whole: {said}") from failures
        if options["json"]:
            for measure in finished.measures:
                sys.stdout.write(measure.as_line() + "\n")
            sys.stdout.flush()
        print_record(finished.record, console=console)
        print_table(finished.measures, console=console)
        if finished.wrong:
            raise CommandError(f"bench {options['name']}: {finished.wrong}")


def add_load_arguments(parser: ArgumentParser) -> None:
    """What every bench takes."""
    parser.add_argument("--json", action="store_true", help="print the measures as JSON lines on stdout")
    parser.add_argument("--engine", choices=ENGINES, default=os.environ.get("ENGINE", "vllm"))
    parser.add_argument("--requests", type=_positive, help="requests sent one at a time, on each side")
    parser.add_argument("--concurrency", type=_positive, help="requests open at once in the throughput rounds")
    parser.add_argument("--max-tokens", type=_positive, help="tokens to generate for each request")
    parser.add_argument("--prompt-words", type=_positive, help="length of each prompt in words")
    parser.add_argument("--trace", type=Path, action="append", default=[], help="a trace of requests; repeatable")


@contextmanager
def _platform(engine: str, console: Console) -> Iterator[Instance]:
    home = Layout.of_clone().state
    running = Instance.find(home)
    kind = None if running is None else asyncio.run(engine_of(running))
    if running is not None and kind == engine != SIMULATED:
        console.print(f"using the platform that runs from {home} (engine {engine})")
        yield running
        return
    why = "none runs" if running is None else f"the running one has the engine {kind}"
    if engine == SIMULATED:
        why = "the simulated engine's pace is part of what is measured"
    console.print(f"starting a private platform with the engine {engine}: {why}")
    with private_instance(engine=engine) as private:
        yield private


def _run(bench: Bench, instance: Instance | None, options: Options, console: Console) -> Finished:
    with shown(f"bench {bench.name}", console=console) as course:
        # A bench without a platform has the parts of a gateway and a worker in itself, so it has their loop.
        run = asyncio.run if bench.platform else uvloop.run
        return run(bench.run(instance, options, course.start))


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(f"{value} is not positive")
    return value
