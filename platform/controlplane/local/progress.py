"""Local mode: what the person at the terminal hears while `make up` works. Called by `launch`.

Invariant: whatever takes long says so every ten seconds, on a terminal and in a file alike: silence means the end.
"""

from __future__ import annotations

import asyncio
import time

from rich.console import Console
from rich.markup import escape

from controlplane.local.supervisor import Child, State, read_report

WAIT_SECONDS = 10.0


def say_waiting(console: Console, what: str, seconds: float) -> None:
    """One line for something that still goes on."""
    console.print(f"  … {what}, {seconds:.0f} s", highlight=False)


class Reporter:
    """Prints what becomes of each child: a line when it serves, when it dies, and each ten seconds in between."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began: dict[str, tuple[float, Child]] = {}

    def __call__(self, child: Child) -> None:
        name, state = child.spec.name, child.state
        if state is State.STARTING:
            self._began[name] = time.monotonic(), child
            return
        began, _ = self._began.pop(name, (time.monotonic(), child))
        if state in (State.SERVING, State.DONE):
            where = f"127.0.0.1:{child.spec.port}" if child.spec.port else ""
            took = time.monotonic() - began
            self._console.print(f"  [green]✓[/] {name:<10} {took:5.1f} s  {where}", highlight=False)
        elif state is State.BACKING_OFF:
            self._console.print(f"  [yellow]{name}: {escape(child.reason)}; it is started again[/]")
        elif state is State.FAILED:
            self._console.print(f"  [red]{name}: given up after {child.deaths} deaths: {escape(child.reason)}[/]")

    async def remind(self) -> None:
        """Until cancelled: says every ten seconds which children are still starting."""
        while True:
            await asyncio.sleep(WAIT_SECONDS)
            for name, (began, child) in self._began.items():
                parts = [_told(role, read_report(path=path)) for role, path in child.spec.reports]
                say_waiting(self._console, ": ".join([f"{name} is starting", *parts]), time.monotonic() - began)


def _told(role: str, report: dict[str, object]) -> str:
    """What a child that is starting says of its own process; at first there is none."""
    is_there = report["pid"] is not None
    return f"its {role} is {report['state']}" if is_there else f"its {role} is not there yet"
