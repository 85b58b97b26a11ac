"""A command whose store is away says so in one sentence; any other error keeps its traceback."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import psycopg
import pytest
from botocore.config import Config
from django.core.management import CommandError
from django.db import OperationalError
from kombu.connection import Connection
from pydantic import SecretStr
from redis import Redis

from contracts.errors import Unavailable
from controlplane import outages
from controlplane.commandline import raise_explained
from controlplane.env import Environment
from stores.clickhouse import ClickHouseError
from stores.clickhouse_url import open_clickhouse

ROOT = Path(__file__).resolve().parents[3]
CLOSED = "127.0.0.1:9"  # discard: below every port that is handed out here
OURS = 21_999


def of_postgres() -> None:
    psycopg.connect(f"postgresql://u:secret@{CLOSED}/weir", connect_timeout=5)


def of_redis() -> None:
    Redis.from_url(f"redis://:secret@{CLOSED}/0").ping()


def of_broker() -> None:
    with Connection(f"redis://:secret@{CLOSED}/1", connect_timeout=5) as connection:  # type: ignore[no-untyped-call]
        connection.ensure_connection(max_retries=0, timeout=1)


def of_clickhouse() -> None:
    open_clickhouse("chdb+unix:///nowhere/meter.sock").execute("SELECT 1")


def of_s3() -> None:
    client = boto3.client(
        "s3",
        endpoint_url=f"http://{CLOSED}",
        aws_access_key_id="a",
        aws_secret_access_key="secret",
        region_name="us-east-1",
        config=Config(retries={"max_attempts": 1}),
    )
    client.list_buckets()


STORES = {
    "PostgreSQL": (of_postgres, "DATABASE_URL"),
    "Redis": (of_redis, "REDIS_URL"),
    "the broker": (of_broker, "REDIS_URL"),
    "ClickHouse": (of_clickhouse, "CLICKHOUSE_URL"),
    "S3": (of_s3, "S3_URL"),
}


def caught(step: Callable[[], None]) -> Exception:
    with pytest.raises(Exception) as found:  # noqa: PT011 - whatever the client raises is the case
        step()
    error: Exception = found.value
    return error


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """Settings of stores that `make up` started here: their ports are in its book."""
    monkeypatch.setenv("WEIR_HOME", str(tmp_path))
    (tmp_path / "ports.json").write_text(json.dumps({"valkey": OURS}))
    known: dict[str, Any] = {
        "database_url": SecretStr(f"postgresql://u:secret@127.0.0.1:{OURS}/weir"),
        "redis_url": SecretStr(f"redis://:secret@127.0.0.1:{OURS}/0"),
        "clickhouse_url": SecretStr("chdb+unix:///nowhere/meter.sock"),
        "s3_url": SecretStr(f"http://a:secret@127.0.0.1:{OURS}/weir"),
    }

    def read() -> Environment:
        return Environment.model_construct(_fields_set=set(known), **(Environment.model_construct().__dict__ | known))

    monkeypatch.setattr(outages, "environment", read)
    return known


class TestExplain:
    @pytest.mark.parametrize("store", STORES)
    def test_says_what_is_not_reachable_and_how_it_is_started(self, settings: dict[str, Any], store: str) -> None:
        sentence = outages.explain(caught(STORES[store][0]))
        assert sentence is not None
        assert sentence.startswith(f"{store} is not reachable at ")
        assert "run `make up`" in sentence
        assert "secret" not in sentence
        assert "\n" not in sentence

    @pytest.mark.parametrize("store", ["PostgreSQL", "Redis", "S3"])
    def test_says_which_setting_to_look_at_for_a_server_elsewhere(self, settings: dict[str, Any], store: str) -> None:
        for field in settings:
            settings[field] = SecretStr(settings[field].get_secret_value().replace(str(OURS), "9"))
        step, variable = STORES[store]
        sentence = outages.explain(caught(step))
        assert sentence is not None
        assert f"nothing listens there: start it, or set {variable}" in sentence

    def test_finds_the_outage_below_other_errors(self, settings: dict[str, Any]) -> None:
        async def fail() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.to_thread(of_redis))

        def wrapped() -> None:
            try:
                of_redis()
            except Exception as error:
                raise Unavailable("limits do not answer") from error

        for step in (lambda: asyncio.run(fail()), wrapped):
            assert "Redis is not reachable" in str(outages.explain(caught(step)))

    def test_says_that_there_are_no_tables_yet(self, settings: dict[str, Any]) -> None:
        error = OperationalError("no such table")
        error.__cause__ = psycopg.errors.UndefinedTable("relation does not exist")
        assert "`manage.py migrate`" in str(outages.explain(error))

    @pytest.mark.parametrize(
        "error",
        [
            ValueError("no"),
            psycopg.errors.LockNotAvailable("locked"),
            ClickHouseError("syntax", code=62),
            OSError("no"),
        ],
    )
    def test_has_nothing_to_say_of_another_error(self, settings: dict[str, Any], error: Exception) -> None:
        assert outages.explain(error) is None
        raise_explained(error)

    def test_keeps_what_the_command_said(self, settings: dict[str, Any]) -> None:
        error = CommandError("run it again: what was issued stands", returncode=3)
        error.__cause__ = caught(of_redis)
        with pytest.raises(CommandError, match="what was issued stands; Redis is not reachable") as told:
            raise_explained(error)
        assert told.value.returncode == 3


def manage(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), *arguments],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


class TestCommandLine:
    def test_ends_with_one_sentence(self) -> None:
        done = manage("usage_report", "--tenant", "Acme", DATABASE_URL=f"postgresql://u:secret@{CLOSED}/weir")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == (
            f"CommandError: PostgreSQL is not reachable at postgresql://u:…@{CLOSED}/weir: nothing listens there: "
            "start it, or set DATABASE_URL to the host and port where it listens\n"
        )

    def test_names_a_setting_that_is_wrong_and_not_its_value(self) -> None:
        done = manage("usage_report", "--tenant", "Acme", WEIR_SECRET="short-secret")
        assert done.returncode == 1
        assert done.stderr.startswith("CommandError: the settings are wrong: WEIR_SECRET: ")
        assert "short-secret" not in done.stderr
        assert done.stderr.count("\n") == 1
