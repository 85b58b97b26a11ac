"""The ClickHouse migrations' runner on real chDB: once each, locked, never changed."""

from pathlib import Path

import pytest

from billing.clickhouse.migrate import LOCK_STALE_SECONDS, MigrationError, Topology, load_migrations, migrate
from billing.metering.record import COLUMNS, TABLE, Batch, build_row
from stores.clickhouse_chdb import ChdbOwner
from tests.factories.jobs import make_record

BATCH = Batch(batch_id="00000000-0000-4000-8000-000000000001", created_at_ms=1_800_000_005_000)
HAS = """SELECT count() AS n FROM system.columns
WHERE database = currentDatabase() AND table = 'inference_requests_audit' AND name = {name:String}"""


class Shared(ChdbOwner):
    """The same store seen as one that others can write to: the lock is then real."""

    exclusive = False


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "0001_first.sql").write_text(
        "-- a comment; with a semicolon\nCREATE TABLE IF NOT EXISTS first ${on_cluster} (a UInt8, version UInt8)\n"
        "ENGINE = ${replacing_by_version} ORDER BY a SETTINGS ${deduplication};\n"
        "CREATE TABLE IF NOT EXISTS second (a UInt8) ENGINE = MergeTree ORDER BY a;\n"
    )
    return tmp_path


@pytest.fixture
def shared(owner: ChdbOwner) -> Shared:
    """A view of the module's owner; it opens nothing of its own."""
    view = Shared.__new__(Shared)
    view.__dict__ = owner.__dict__
    for table in ("first", "second", "third", "weir_migrations", "weir_migrations_lock"):
        owner.command(f"DROP TABLE IF EXISTS {table} SYNC")
    return view


class TestMigrate:
    def test_applies_each_file_once(self, shared: Shared, folder: Path) -> None:
        assert migrate(clickhouse=shared, topology=Topology(), pause=pytest.fail, folder=folder) == ["0001_first"]
        (folder / "0002_third.sql").write_text("CREATE TABLE IF NOT EXISTS third (a UInt8) ENGINE = Memory;")
        assert migrate(clickhouse=shared, topology=Topology(), pause=pytest.fail, folder=folder) == ["0002_third"]
        assert migrate(clickhouse=shared, topology=Topology(), pause=pytest.fail, folder=folder) == []
        tables = shared.execute(
            "SELECT name FROM system.tables WHERE name IN ('first', 'second', 'third') ORDER BY name"
        )
        assert [row["name"] for row in tables] == ["first", "second", "third"]

    def test_refuses_a_file_that_was_changed(self, shared: Shared, folder: Path) -> None:
        migrate(clickhouse=shared, topology=Topology(), pause=pytest.fail, folder=folder)
        with (folder / "0001_first.sql").open("a") as file:
            file.write("SELECT 1;\n")
        with pytest.raises(MigrationError, match="was changed"):
            migrate(clickhouse=shared, topology=Topology(), pause=pytest.fail, folder=folder)

    def test_waits_for_another_migrator(self, shared: Shared, folder: Path) -> None:
        shared.command(
            "CREATE TABLE weir_migrations_lock (held UInt8) ENGINE = MergeTree ORDER BY held COMMENT '4000000000'"
        )
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 3:
                shared.command("DROP TABLE weir_migrations_lock SYNC")

        assert migrate(clickhouse=shared, topology=Topology(), pause=pause, folder=folder) == ["0001_first"]
        assert len(pauses) == 3

    def test_gives_up_on_a_lock_that_stays(self, shared: Shared, folder: Path) -> None:
        shared.command(
            "CREATE TABLE weir_migrations_lock (held UInt8) ENGINE = MergeTree ORDER BY held COMMENT '4000000000'"
        )
        with pytest.raises(MigrationError, match="holds the lock"):
            migrate(clickhouse=shared, topology=Topology(), pause=lambda seconds: None, folder=folder)

    def test_breaks_a_lock_that_a_crash_left(self, shared: Shared, folder: Path) -> None:
        (now,) = shared.execute("SELECT toUnixTimestamp(now()) AS seconds")
        long_ago = now["seconds"] - LOCK_STALE_SECONDS - 1
        shared.command(
            f"CREATE TABLE weir_migrations_lock (held UInt8) ENGINE = MergeTree ORDER BY held COMMENT '{long_ago}'"
        )
        assert migrate(clickhouse=shared, topology=Topology(), pause=pytest.fail, folder=folder) == ["0001_first"]

    def test_never_waits_where_nobody_else_can_write(self, shared: Shared, owner: ChdbOwner, folder: Path) -> None:
        shared.command(
            "CREATE TABLE weir_migrations_lock (held UInt8) ENGINE = MergeTree ORDER BY held COMMENT '4000000000'"
        )
        assert migrate(clickhouse=owner, topology=Topology(), pause=pytest.fail, folder=folder) == ["0001_first"]


class TestMigrations:
    def test_know_what_was_metered_before_them(self, shared: Shared, tmp_path: Path) -> None:
        """A table as each release left it, with a row, is brought up to the next."""
        files = load_migrations()
        shared.command("DROP TABLE IF EXISTS inference_requests_audit SYNC")
        for migration in files:
            (tmp_path / f"{migration.name}.sql").write_text(migration.text)
            migrate(clickhouse=shared, topology=Topology(), pause=pytest.fail, folder=tmp_path)
            names = [name for name in COLUMNS if shared.execute(HAS, {"name": name}) != [{"n": 0}]]
            values = dict(zip(COLUMNS, build_row(make_record(), batch=BATCH), strict=True))
            kept = [tuple(values[name] for name in names)]
            shared.insert(table=TABLE, columns=names, rows=kept, token=migration.name)
        assert names == list(COLUMNS)
        rows = shared.execute("SELECT budget_cut, stopped_by, outcome FROM inference_requests_audit")
        assert rows == [{"budget_cut": False, "stopped_by": "", "outcome": "ok"}] * len(files)

    def test_take_a_second_run_of_each_statement(self, shared: Shared, tmp_path: Path) -> None:
        """As after a crash between a statement and the note that it was applied."""
        shared.command("DROP TABLE IF EXISTS inference_requests_audit SYNC")
        for _ in range(2):
            shared.command("DROP TABLE IF EXISTS weir_migrations SYNC")
            assert migrate(clickhouse=shared, topology=Topology(), pause=pytest.fail) == [
                migration.name for migration in load_migrations()
            ]


class TestTopology:
    def test_replicates_by_one_setting(self) -> None:
        (statement,) = load_migrations()[0].statements()
        alone, cluster = Topology().fill(statement), Topology(cluster="main").fill(statement)
        assert "ENGINE = ReplacingMergeTree(version)" in alone
        assert "non_replicated_deduplication_window = 10000" in alone
        assert "ON CLUSTER 'main'" in cluster
        assert (
            "ReplicatedReplacingMergeTree('/clickhouse/tables/{shard}/{database}/{table}', '{replica}', version)"
            in cluster
        )
        assert " replicated_deduplication_window = 10000" in cluster
        assert "$" not in alone + cluster

    def test_changes_every_node_of_a_cluster(self) -> None:
        for migration in load_migrations():
            for statement in migration.statements():
                assert "ON CLUSTER 'main'" in Topology(cluster="main").fill(statement)
                assert "CLUSTER" not in Topology().fill(statement)


class TestLoadMigrations:
    def test_refuses_a_gap_and_a_bad_name(self, folder: Path) -> None:
        (folder / "0003_late.sql").write_text("SELECT 1;")
        with pytest.raises(MigrationError, match="gap"):
            load_migrations(folder)
        (folder / "0003_late.sql").rename(folder / "late.sql")
        with pytest.raises(MigrationError, match="NNNN"):
            load_migrations(folder)
