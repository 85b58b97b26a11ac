"""How far a long command is: told in lines where stderr is no terminal, in a bar where it is."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from io import StringIO

import pytest
from rich.console import Console

from controlplane.management.commands.conformance import _counting
from controlplane.management.progress import Course, shown
from infra.conformance.case import Result, Verdict
from infra.conformance.catalogue import all_cases

PATIENCE_SECONDS = 10.0


@pytest.fixture
def log() -> StringIO:
    """What a console that is no terminal writes to."""
    return StringIO()


def until(is_so: Callable[[], bool]) -> None:
    """Waits for a line, as a command that keeps its thread busy does: nothing of ours runs meanwhile."""
    ends = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < ends, "no line came"
        time.sleep(0.002)


class TestInAFile:
    def test_says_again_and_again_how_many_steps_are_done(self, log: StringIO) -> None:
        with shown("bench fake", console=Console(file=log), every=0.01) as course:
            advance = course.start(1_200)
            advance(7)
            until(lambda: log.getvalue().count("bench fake: 7 of 1,200") >= 2)
            advance(1_000)
            until(lambda: "bench fake: 1,007 of 1,200" in log.getvalue())
        assert all(re.fullmatch(r"  … bench fake(: [\d,]+ of 1,200)?, \d+ s", line) for line in lines(log))

    def test_says_that_it_goes_on_before_the_number_of_steps_is_known(self, log: StringIO) -> None:
        with shown("bench fake", console=Console(file=log), every=0.01):
            until(lambda: "  … bench fake, 0 s\n" in log.getvalue())

    def test_says_nothing_of_what_is_soon_over(self, log: StringIO) -> None:
        with shown("bench fake", console=Console(file=log)) as course:
            course.start(3)(3)
        assert log.getvalue() == ""

    @pytest.mark.parametrize("failure", [ValueError("broken"), KeyboardInterrupt()])
    def test_is_silent_once_the_command_has_failed(self, log: StringIO, failure: BaseException) -> None:
        with pytest.raises(type(failure)), shown("bench fake", console=Console(file=log), every=0.01):
            raise failure
        said = log.getvalue()
        time.sleep(0.05)
        assert log.getvalue() == said

    def test_leaves_stdout_alone(self, capsys: pytest.CaptureFixture[str]) -> None:
        out, err = StringIO(), StringIO()

        def is_told() -> bool:
            captured = capsys.readouterr()
            out.write(captured.out)
            err.write(captured.err)
            return "bench fake: 0 of 2" in err.getvalue()

        with shown("bench fake", console=Console(stderr=True), every=0.01) as course:
            course.start(2)
            until(is_told)
        assert out.getvalue() + capsys.readouterr().out == ""


class TestOnATerminal:
    def test_draws_a_bar_and_no_lines(self, log: StringIO) -> None:
        console = Console(file=log, force_terminal=True, width=100, _environ={"TERM": "xterm"})
        with shown("bench fake", console=console, every=0.01) as course:
            course.start(40)(9)
            until(lambda: "9/40" in log.getvalue())
        assert " of 40" not in log.getvalue()

    def test_writes_lines_where_the_terminal_draws_no_bars(self, log: StringIO) -> None:
        console = Console(file=log, force_terminal=True, width=100, _environ={"TERM": "dumb"})
        with shown("bench fake", console=console, every=0.01) as course:
            course.start(40)(9)
            until(lambda: "9 of 40" in log.getvalue())


class TestConformance:
    def test_counts_the_cases_and_those_that_are_wrong(self) -> None:
        course = Course("conformance", lambda _: None)
        course.start(2_500)
        advance = _counting(course)
        for verdict in (Verdict.OK, Verdict.WRONG, Verdict.SKIPPED, Verdict.WRONG):
            advance(Result(case=all_cases()[0], verdict=verdict, seen=""))
        assert course.told() == "conformance, 2 wrong: 4 of 2,500"


def lines(log: StringIO) -> list[str]:
    return log.getvalue().splitlines()
