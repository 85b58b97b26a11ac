"""How far a long command is: a bar on a terminal, a plain line now and then elsewhere. Called by bench and conformance.

Invariant: nothing goes anywhere but to the console that was given (stderr), so that stdout can be piped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from controlplane.local.progress import say_waiting

WAIT_SECONDS = 30.0


@dataclass(slots=True)
class Course:
    """What is done of a whole, as told by whoever does it. `total` is None until it is known."""

    title: str
    changed: Callable[[Course], None]
    done: int = 0
    total: int | None = None

    def start(self, total: int) -> Callable[[int], None]:
        """Sets the number of steps; gives what counts them."""
        self.total = total
        self.changed(self)
        return self.advance

    def advance(self, count: int, *, title: str | None = None) -> None:
        """So many steps more are done."""
        self.done += count
        self.title = title or self.title
        self.changed(self)

    def told(self) -> str:
        """For a line."""
        return self.title if self.total is None else f"{self.title}: {self.done:,} of {self.total:,}"


@contextmanager
def shown(title: str, *, console: Console, every: float = WAIT_SECONDS) -> Iterator[Course]:
    """Shows the course while the block runs, also where the block keeps the event loop busy."""
    is_live = console.is_terminal and not console.is_dumb_terminal
    with _bar(title, console) if is_live else _lines(title, console, every) as course:
        yield course


@contextmanager
def _bar(title: str, console: Console) -> Iterator[Course]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(title, total=None)

        def changed(course: Course) -> None:
            bar.update(task, description=course.title, completed=course.done, total=course.total)

        yield Course(title, changed)


@contextmanager
def _lines(title: str, console: Console, every: float) -> Iterator[Course]:
    course, ended, began = Course(title, lambda _: None), Event(), time.monotonic()

    def tell() -> None:
        while not ended.wait(every):
            say_waiting(console, course.told(), time.monotonic() - began)

    teller = Thread(target=tell, name="progress", daemon=True)
    teller.start()
    try:
        yield course
    finally:
        ended.set()
        teller.join()
