"""`manage.py conformance --base-url URL --key KEY`: the suite of infra/conformance against any OpenAI-style server.

The table goes to stdout (wrong and skipped cases, then sums by kind; `--all` shows every case), progress to stderr.
Exit code 0 only when no case is wrong, 1 when one is, 2 when the suite could not run.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from typing import Any

import httpx
from django.core.management.base import BaseCommand, CommandError
from rich.console import Console

from controlplane.env import ROOT
from controlplane.management.progress import Course, shown
from infra.conformance.case import Case, Result, Verdict
from infra.conformance.catalogue import NoSuchGroup, chosen_cases
from infra.conformance.output import as_line, print_sums, render_list, table_of
from infra.conformance.runner import run_cases
from infra.conformance.target import BadTarget, Target, parse_base_url

PAGE = ROOT / "docs" / "conformance.md"
_WIDTH = 160  # of what goes into a file
_MODELS_SECONDS = 30.0


class Command(BaseCommand):
    """Runs or lists the conformance cases."""

    help = "Run the public conformance cases against an OpenAI-style server and print a table."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--base-url", help="the server's base URL, such as http://127.0.0.1:8080/v1")
        parser.add_argument("--key", help="an API key of that server")
        parser.add_argument("--other-key", help="a key of another tenant; without it some cases are skipped")
        parser.add_argument("--model", help="the model to ask; the first one listed by default")
        parser.add_argument("--only", action="append", default=[], metavar="GROUP", help="a group or kind; repeatable")
        parser.add_argument("--json", action="store_true", help="one JSON object for each case on stdout, no table")
        parser.add_argument("--all", action="store_true", help="show the cases that are ok in the table as well")
        parser.add_argument("--list", action="store_true", help="print the list of cases as Markdown and stop")
        parser.add_argument("--write", action="store_true", help="with --list: write it to docs/conformance.md")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["list"]:
            self._list(write=options["write"])
            return
        if not options["base_url"] or not options["key"]:
            raise CommandError("give --base-url and --key, or use --list", returncode=2)
        try:
            cases = chosen_cases(options["only"])
            target = _target(options)
        except (NoSuchGroup, BadTarget) as error:
            raise CommandError(str(error), returncode=2) from error
        try:
            results = _run(cases, target)
        except OSError as error:
            raise CommandError(f"{target.root} cannot be reached: {error or 'no answer'}", returncode=2) from error
        _print(results, as_json=options["json"], every=options["all"])
        wrong = sum(result.verdict is Verdict.WRONG for result in results)
        if wrong:
            raise CommandError(f"{wrong} of {len(results)} cases are wrong", returncode=1)

    def _list(self, *, write: bool) -> None:
        if write:
            PAGE.write_text(render_list(), encoding="utf-8")
            self.stdout.write(f"wrote {PAGE.relative_to(ROOT)}")
        else:
            self.stdout.write(render_list(), ending="")


def _target(options: dict[str, Any]) -> Target:
    """The server, with a model that it serves. Raises BadTarget."""
    key, model = options["key"], options["model"] or ""
    target = parse_base_url(options["base_url"], key=key, other_key=options["other_key"], model=model)
    if model:
        return target
    try:
        listed = httpx.get(
            target.url("/models"), headers={"Authorization": f"Bearer {key}"}, timeout=_MODELS_SECONDS, trust_env=False
        )
        model = str(listed.json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
        raise BadTarget(f"{target.url('/models')} lists no model ({error}); name one with --model") from error
    return parse_base_url(options["base_url"], key=key, other_key=options["other_key"], model=model)


def _run(cases: Sequence[Case], target: Target) -> list[Result]:
    with shown("conformance", console=Console(stderr=True)) as course:
        course.start(len(cases))
        return asyncio.run(run_cases(cases, target, advance=_counting(course)))


def _counting(course: Course) -> Callable[[Result], None]:
    wrong = 0

    def advance(result: Result) -> None:
        nonlocal wrong
        wrong += result.verdict is Verdict.WRONG
        course.advance(1, title=f"conformance, {wrong} wrong")

    return advance


def _print(results: Sequence[Result], *, as_json: bool, every: bool) -> None:
    if as_json:
        for result in results:
            sys.stdout.write(as_line(result) + "\n")
        sys.stdout.flush()
        return
    console = Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False)
    shown = [result for result in results if every or result.verdict is not Verdict.OK]
    if shown:
        console.print(table_of(shown))
    print_sums(results, console=console)
