"""`manage.py logs [NAME …]`: the ends of the logs in .weir/logs; `--follow` goes on until Ctrl-C."""

import sys
import time
from argparse import ArgumentParser
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand

from controlplane.local import logs
from controlplane.local.paths import Layout

_FOLLOW_SECONDS = 0.3


class Command(BaseCommand):
    help = __doc__
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("names", nargs="*", help="such as gateway, worker-1, postgres; all when none is named")
        parser.add_argument("-n", "--lines", type=int, default=0, help="lines of each (20; 200 when names are given)")
        parser.add_argument("-f", "--follow", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        layout = Layout.of_clone()
        known = {path.stem: path for path in sorted(layout.logs.glob("*.log"))}
        unknown = [name for name in options["names"] if name not in known]
        if unknown or not known:
            names = ", ".join(known) or "none: nothing was started here yet"
            sys.exit(f"logs: no log of {', '.join(unknown) or 'anything'}; there are: {names}")
        chosen = {name: known[name] for name in options["names"] or known}
        for name, path in chosen.items():
            lines = options["lines"] or (200 if options["names"] else 20)
            for line in logs.tail(path=path, lines=lines):
                print(_line(name, line, alone=len(chosen) == 1))
        if options["follow"]:
            with suppress(KeyboardInterrupt):
                _follow(chosen)


def _line(name: str, line: str, *, alone: bool) -> str:
    return line if alone else f"{name:<10} | {line}"


def _follow(chosen: dict[str, Path]) -> None:
    offsets = {name: path.stat().st_size for name, path in chosen.items()}
    while True:
        for name, path in chosen.items():
            with path.open("rb") as handle:
                # A rotated log is shorter than before: begin again.
                offsets[name] = handle.seek(min(offsets[name], path.stat().st_size))
                said = handle.read()
            whole, _, _ = said.rpartition(b"\n")
            offsets[name] += len(whole) + (1 if b"\n" in said else 0)
            for line in whole.decode(errors="replace").splitlines():
                print(_line(name, line, alone=len(chosen) == 1), flush=True)
        time.sleep(_FOLLOW_SECONDS)
