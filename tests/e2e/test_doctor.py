"""`doctor` and `check --deploy` on what `make up` starts: every store and the worker's own engine are well."""

from __future__ import annotations

from tests.e2e.conftest import Platform


class TestDoctor:
    def test_finds_all_well(self, platform: Platform) -> None:
        done = platform.instance.manage("doctor", deadline=120)
        good = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("✓")]
        assert (done.returncode, good) == (0, ["PostgreSQL", "Redis", "broker", "ClickHouse", "S3", "engine"]), (
            done.stdout
        )
        assert "append-only file on, no eviction" in done.stdout
        assert f"simulated serves {platform.model}" in done.stdout

    def test_finds_no_server_missing_before_production(self, platform: Platform) -> None:
        """What is found is that these are a demo's settings, and not one server."""
        said = platform.instance.manage("check", "--deploy", deadline=120).stdout
        assert "weir.E003" in said
        assert "weir.E004" not in said
