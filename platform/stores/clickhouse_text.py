"""How values travel to and from ClickHouse as text: parameters, inserted rows, results.

Used by the ClickHouse adapters only. Invariant: no number of a bill passes through a float; decimals travel quoted.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import orjson

RESULT_FORMAT = "JSONCompactEachRowWithNamesAndTypes"
INSERT_FORMAT = "JSONCompactEachRow"
_INSERT_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATETIME

_ESCAPES = str.maketrans(
    {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\0": "\\0", "\b": "\\b", "\f": "\\f", "'": "\\'"}
)


def parameter_text(value: object) -> str:
    """A `{name:Type}` parameter as ClickHouse reads it: an escaped text, a number, or an array literal of those."""
    if isinstance(value, str):
        return value.translate(_ESCAPES)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, Sequence):
        return "[" + ",".join(_element(item) for item in value) + "]"
    raise TypeError(f"a query parameter is an int, a str or a sequence of those, not {type(value).__name__}")


def rows_text(rows: Sequence[Sequence[Any]]) -> str:
    """Rows as JSONCompactEachRow. Raises TypeError for a value that the port does not carry."""
    # orjson: a third of a batch's time went into this text with json.
    return b"\n".join(orjson.dumps(row, default=_insertable, option=_INSERT_OPTIONS) for row in rows).decode()


def read_result(data: bytes) -> list[dict[str, Any]]:
    """Rows of a RESULT_FORMAT answer, with Python types by the column's ClickHouse type."""
    lines = [line for line in data.split(b"\n") if line]
    if not lines:
        return []
    names, types = json.loads(lines[0]), [_bare(kind) for kind in json.loads(lines[1])]
    return [
        {name: _revive(kind, value) for name, kind, value in zip(names, types, json.loads(line), strict=True)}
        for line in lines[2:]
    ]


def _element(item: object) -> str:
    return "'" + item.translate(_ESCAPES) + "'" if isinstance(item, str) else parameter_text(item)


def _insertable(value: Any) -> Any:
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
    raise TypeError(f"a row carries no {type(value).__name__}")


def _bare(kind: str) -> str:
    """`Nullable(…)` and `LowCardinality(…)` say how a column is stored, not what it holds."""
    for wrapper in ("LowCardinality(", "Nullable("):
        if kind.startswith(wrapper):
            return _bare(kind[len(wrapper) : -1])
    return kind


def _revive(kind: str, value: Any) -> Any:
    if value is None:
        return None
    if kind.startswith("Decimal"):
        return Decimal(value)
    if kind.startswith("DateTime"):
        return datetime.fromisoformat(value).replace(tzinfo=UTC)
    if kind.startswith("Array("):
        inner = _bare(kind[len("Array(") : -1])
        return [_revive(inner, item) for item in value]
    if kind.startswith("Map("):
        numeric = kind.startswith(("Map(UInt", "Map(Int"))
        return {int(key) if numeric else key: item for key, item in value.items()}
    return value
