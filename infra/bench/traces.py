"""Request traces as the simulations take them: when each came, its prompt and its answer in tokens.

Called by bench `fairness`. Two public forms are read, gzipped or not: Azure's CSV (`TIMESTAMP, ContextTokens,
GeneratedTokens`; Azure public dataset, CC-BY 4.0) and Mooncake's JSON lines (`timestamp` in ms, `input_length`,
`output_length`; Apache-2.0). Neither names tenants, so they are drawn. Without a file a trace is made, from a seed.
"""

from __future__ import annotations

import csv
import gzip
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path


class NoTrace(ValueError):
    """The file is none that can be read as a trace; the text says why."""


@dataclass(frozen=True, slots=True)
class Row:
    """One request; `at` in seconds since the first."""

    at: float
    prompt: int
    output: int


def read_trace(path: Path, *, rows_max: int) -> list[Row]:
    """The first rows of a trace by time. Raises NoTrace, OSError."""
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
            first = lines.readline()
            read = _mooncake([first, *lines]) if first.startswith("{") else _azure([first, *lines])
            rows = sorted(islice(read, rows_max), key=lambda row: row.at)
    except (ValueError, KeyError, gzip.BadGzipFile) as error:
        raise NoTrace(f"{path.name}: neither Azure's CSV nor Mooncake's JSON lines: {error!r}") from error
    if not rows:
        raise NoTrace(f"{path.name} holds no request with an answer")
    return [Row(row.at - rows[0].at, row.prompt, row.output) for row in rows]


def _mooncake(lines: Sequence[str]) -> Iterator[Row]:
    for line in lines:
        row = json.loads(line)
        if int(row["output_length"]) > 0:
            yield Row(float(row["timestamp"]) / 1_000, int(row["input_length"]), int(row["output_length"]))


def _azure(lines: Sequence[str]) -> Iterator[Row]:
    for row in csv.DictReader(lines):
        if int(row["GeneratedTokens"]) > 0:
            at = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
            yield Row(at, int(row["ContextTokens"]), int(row["GeneratedTokens"]))


def made_trace(*, seed: int, rows: int) -> list[Row]:
    """Poisson arrivals, five a second; log-normal lengths like a chat's (medians 1,000 and 130 tokens)."""
    source = random.Random(seed)  # noqa: S311 - repeatable, no secret
    at = 0.0
    made = []
    for _ in range(rows):
        at += source.expovariate(5.0)
        prompt = min(max(int(source.lognormvariate(6.9, 1.0)), 1), 32_000)
        output = min(max(int(source.lognormvariate(4.87, 0.9)), 1), 2_000)
        made.append(Row(at, prompt, output))
    return made
