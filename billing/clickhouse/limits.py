"""What was metered for admissions of a period, as the limits count it. Blocking; the reader is handed in.

Called by `controlplane.limits_audit`. Invariant: first revisions only, because a later correction of a bill changes
what is owed and not what a limit let through.
"""

from dataclasses import dataclass
from pathlib import Path

from contracts.money import nano_from_decimal
from stores.clickhouse import Reader

_SQL = (Path(__file__).parent / "queries" / "limit_use.sql").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedUse:
    """Tokens (prompt and completion) and nano-units of the requests of one key for one model."""

    project_id: str
    api_key_id: str
    model: str
    tokens: int
    cost_nano: int


def read_admitted(reader: Reader, *, tenant_id: str, start_ms: int, end_ms: int, billed_ms: int) -> list[AdmittedUse]:
    """Of requests admitted in [start_ms, end_ms) and recorded until `billed_ms`. Raises ClickHouseUnavailable."""
    period = {"start_ms": start_ms, "end_ms": end_ms, "billed_ms": billed_ms}
    rows = reader.execute(_SQL, {"tenant_id": tenant_id, **period})
    return [
        AdmittedUse(
            project_id=row["project_id"],
            api_key_id=row["api_key_id"],
            model=row["model_name"],
            tokens=row["tokens"],
            cost_nano=nano_from_decimal(row["cost"]),
        )
        for row in rows
    ]
