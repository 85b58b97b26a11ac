"""Brings the ClickHouse schema up to the files of `migrations/`, once each, in order.

Run by the meter before its first insert. Invariants: one migrator at a time (a table is the lock: creating it is
atomic); a file that was applied never changes (its checksum is kept); a file's statements can be run again after a
crash between them, since they say IF NOT EXISTS.
"""

import hashlib
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from string import Template

from stores.clickhouse import ClickHouse, ClickHouseError

FOLDER = Path(__file__).parent / "migrations"
LOCK_STALE_SECONDS = 600  # no statement of a migration takes longer
_LOCK_WAIT_SECONDS = 1.0
_LOCK_TRIES = 120
_TABLE_EXISTS = 57
_NAME = re.compile(r"^(?P<version>\d{4})_[a-z0-9_]+\.sql$")

log = logging.getLogger("weir.clickhouse")


class MigrationError(Exception):
    """An applied file changed, a number is missing, or the lock did not come free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """How tables are made. With `cluster` they are replicated and created on every node of it."""

    cluster: str = ""

    def fill(self, sql: str) -> str:
        """The statement for this topology. Raises KeyError for an unknown placeholder."""
        replicated = bool(self.cluster)
        path = "'/clickhouse/tables/{shard}/{database}/{table}', '{replica}'"
        return Template(sql).substitute(
            on_cluster=f"ON CLUSTER '{self.cluster}'" if replicated else "",
            replacing_by_version=(
                f"ReplicatedReplacingMergeTree({path}, version)" if replicated else "ReplacingMergeTree(version)"
            ),
            deduplication=(
                "replicated_deduplication_window = 10000, replicated_deduplication_window_seconds = 2592000"
                if replicated
                else "non_replicated_deduplication_window = 10000"
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    version: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def statements(self) -> list[str]:
        """The file's statements without comments. A statement ends with a semicolon at the end of a line."""
        code = "\n".join(line for line in self.text.splitlines() if not line.lstrip().startswith("--"))
        return [part.strip() for part in re.split(r";\s*\n|;\s*$", code) if part.strip()]


def load_migrations(folder: Path = FOLDER) -> list[Migration]:
    """Every file in order. Raises MigrationError for a bad name or a gap in the numbers."""
    found = []
    for path in sorted(folder.glob("*.sql")):
        name = _NAME.match(path.name)
        if name is None:
            raise MigrationError(f"{path.name} is not called NNNN_name.sql")
        found.append(Migration(version=int(name["version"]), name=path.stem, text=path.read_text(encoding="utf-8")))
    if [migration.version for migration in found] != list(range(1, len(found) + 1)):
        raise MigrationError("the numbers of the migrations have a gap or a double")
    return found


def migrate(
    *, clickhouse: ClickHouse, topology: Topology, pause: Callable[[float], None], folder: Path = FOLDER
) -> list[str]:
    """Apply what is missing; the names applied. `pause(seconds)` waits between looks at the lock.

    Raises MigrationError, ClickHouseError, ClickHouseUnavailable.
    """
    migrations = load_migrations(folder)
    with _lock(clickhouse, pause):
        clickhouse.command(_MIGRATIONS_TABLE)
        applied = {row["version"]: row["checksum"] for row in clickhouse.execute(_APPLIED)}
        missing = [migration for migration in migrations if not _is_applied(migration, applied)]
        for migration in missing:
            for statement in migration.statements():
                clickhouse.command(topology.fill(statement))
            row = (migration.version, migration.name, migration.checksum)
            clickhouse.insert(
                table="weir_migrations",
                columns=("version", "name", "checksum"),
                rows=[row],
                token=f"migration-{migration.version}-{migration.checksum}",
            )
            log.info("applied the ClickHouse migration %s", migration.name)
    return [migration.name for migration in missing]


def _is_applied(migration: Migration, applied: dict[int, str]) -> bool:
    known = applied.get(migration.version)
    if known is not None and known != migration.checksum:
        raise MigrationError(f"{migration.name} was changed after it had been applied; write a new migration instead")
    return known is not None


_MIGRATIONS_TABLE = """CREATE TABLE IF NOT EXISTS weir_migrations
(version UInt32, name String, checksum String, applied_at DateTime('UTC') DEFAULT now('UTC'))
ENGINE = MergeTree ORDER BY version"""
_APPLIED = "SELECT version, any(checksum) AS checksum FROM weir_migrations GROUP BY version ORDER BY version"
_NOW = "SELECT toUnixTimestamp(now()) AS seconds"
_LOCK = "CREATE TABLE weir_migrations_lock (held UInt8) ENGINE = MergeTree ORDER BY held COMMENT '{seconds}'"
_LOCK_AGE = """SELECT toInt64(toUnixTimestamp(now())) - toInt64OrZero(comment) AS seconds
FROM system.tables WHERE database = currentDatabase() AND name = 'weir_migrations_lock'"""
_UNLOCK = "DROP TABLE IF EXISTS weir_migrations_lock SYNC"


@contextmanager
def _lock(clickhouse: ClickHouse, pause: Callable[[float], None]) -> Iterator[None]:
    """Creating a table is atomic, so it is the lock. One left by a crash is broken after LOCK_STALE_SECONDS, at once
    where this process alone can write."""
    if clickhouse.exclusive:
        clickhouse.command(_UNLOCK)
    for _ in range(_LOCK_TRIES):
        if _try_lock(clickhouse):
            break
        age = clickhouse.execute(_LOCK_AGE)
        if age and age[0]["seconds"] > LOCK_STALE_SECONDS:
            log.warning("breaking a migration lock of %d seconds ago", age[0]["seconds"])
            clickhouse.command(_UNLOCK)
        else:
            pause(_LOCK_WAIT_SECONDS)
    else:
        raise MigrationError("another migrator holds the lock; drop the table weir_migrations_lock if none runs")
    try:
        yield
    finally:
        clickhouse.command(_UNLOCK)


def _try_lock(clickhouse: ClickHouse) -> bool:
    try:
        clickhouse.command(_LOCK.format(**clickhouse.execute(_NOW)[0]))
    except ClickHouseError as error:
        if error.code == _TABLE_EXISTS:
            return False
        raise
    return True
