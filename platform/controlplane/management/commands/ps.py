"""`manage.py ps`: the processes of the platform that runs here, with state, restarts, age and memory."""

import json
import time
from typing import Any

from django.core.management.base import BaseCommand
from rich.table import Table

from controlplane.local.children import find_usage
from controlplane.local.output import open_console
from controlplane.local.paths import Layout
from controlplane.local.supervisor import is_locked


class Command(BaseCommand):
    help = __doc__
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        layout, console = Layout.of_clone(), open_console()
        document = _read_run_file(layout)
        if document is None or not is_locked(layout=layout):
            console.print("Nothing runs here; `make up` starts it.")
            return
        table = Table("name", "role", "pid", "port", "state", "restarts", "up", "memory", box=None)
        for row in (*document["processes"], *document["missing"]):
            table.add_row(*_cells(row))
        console.print(table)
        if any(row["state"] == "failed" for row in document["missing"]):
            console.print(
                "What is `failed` was given up; `make logs NAME=…` says why, `make down` and `make up` start anew."
            )


def _read_run_file(layout: Layout) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(layout.run_file.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return found


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    port = str(row["port"]) if row["port"] else ""
    usage = find_usage(pid=row["pid"]) if row["pid"] else None
    state = "gone" if row["pid"] and usage is None else row["state"]
    state += _deaths(row.get("deaths") or 0)
    state += f": {row['reason']}" if row.get("reason") else ""
    fixed = (row["name"], row["role"], str(row["pid"] or ""), port, state, _restarts(row))
    if usage is None:
        return (*fixed, "", "")
    return (*fixed, _duration(usage.age), f"{usage.memory_bytes / 1e6:.0f} MB")


def _deaths(count: int) -> str:
    """How often it died without serving for a while in between."""
    if count == 0:
        return ""
    return ", died a moment ago" if count == 1 else f", died {count} times in a row"


def _restarts(row: dict[str, Any]) -> str:
    """How often it was started anew since `make up`, and when last: `2, last 0:03:10 ago`."""
    count, at = row.get("restarts"), row.get("restarted_at")
    if not count:
        return ""
    return str(count) if at is None else f"{count}, last {_duration(max(0.0, time.monotonic() - at))} ago"


def _duration(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"
