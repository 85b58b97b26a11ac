"""What a bench says: one JSON object a line on stdout for machines, a table on stderr for people.

Called by `manage.py bench`. Invariant: stdout holds nothing but those lines, so that it can be piped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One number of one case. `peer_value` is the same quantity measured on `peer`, in the same unit.

    `whole` is given where `value` is a difference from the peer: then the ratio is that of the whole quantities.
    """

    bench: str
    metric: str
    value: float
    unit: str
    case: Mapping[str, str | int | float] = field(default_factory=dict)
    peer: str | None = None
    peer_value: float | None = None
    whole: float | None = None

    @property
    def ratio(self) -> float | None:
        """Ours over the peer's; None without a peer or when the peer measured 0."""
        ours = self.value if self.whole is None else self.whole
        return None if not self.peer_value else ours / self.peer_value

    def as_line(self) -> str:
        """The line for stdout."""
        document = {
            "bench": self.bench,
            "case": case_text(self.case),
            "metric": self.metric,
            "value": _rounded(self.value),
            "unit": self.unit,
            "peer": self.peer,
            "peer_value": _rounded(self.peer_value),
            "ratio": _rounded(self.ratio),
        }
        return json.dumps(document, ensure_ascii=False)


def case_text(case: Mapping[str, str | int | float]) -> str:
    """`key=value,key=value`, in the order given. Raises ValueError when a part holds the separators."""
    for name, value in case.items():
        if set(f"{name}{value}") & {",", "=", "\n"}:
            raise ValueError(f"{name}={value} cannot stand in a case")
    return ",".join(f"{name}={value}" for name, value in case.items())


def print_table(measures: Sequence[Measure], *, console: Console) -> None:
    """The same numbers for people, one table a case."""
    for case in dict.fromkeys(case_text(item.case) for item in measures):
        rows = [item for item in measures if case_text(item.case) == case]
        table = Table(title=f"{rows[0].bench}: {case.replace(',', ', ')}", title_justify="left")
        for heading in ("metric", "value", "unit", "peer", "peer's value", "ratio"):
            number = heading in ("value", "peer's value", "ratio")
            table.add_column(heading, justify="right" if number else "left", no_wrap=True)
        for item in rows:
            numbers = (_shown(item.value), _shown(item.peer_value), _shown(item.ratio))
            table.add_row(item.metric, numbers[0], item.unit, item.peer or "", numbers[1], numbers[2])
        console.print(table)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def _shown(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3f}".rstrip("0").rstrip(".")
