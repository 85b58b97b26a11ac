"""`make doctor` on real servers: each thing that is wrong is named, with the setting to change."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from controlplane.local.doctor import Finding, examine

CLOSED = "127.0.0.1:9"  # discard: below every port that is handed out here


def look(name: str, **env: str) -> Finding:
    """The finding of one check; the others see nothing set, or a closed port."""
    found = asyncio.run(examine(env=env))
    return next(finding for finding in found if finding.name == name)


def change(url: str, *, password: str | None = None, path: str | None = None) -> str:
    parts = urlsplit(url)
    if password is not None:
        parts = parts._replace(netloc=f"{parts.username or ''}:{password}@{parts.netloc.rpartition('@')[2]}")
    return urlunsplit(parts if path is None else parts._replace(path=path))


class TestPostgres:
    def test_is_well(self, postgres_url: str) -> None:
        found = look("PostgreSQL", DATABASE_URL=postgres_url)
        assert found.is_good, found
        assert "only-for-tests" not in found.detail

    def test_refuses_the_password(self, postgres_url: str) -> None:
        found = look("PostgreSQL", DATABASE_URL=change(postgres_url, password="wrong"))
        assert "right user and password into DATABASE_URL" in found.fix
        assert "wrong" not in found.detail

    def test_has_no_such_database(self, postgres_url: str) -> None:
        found = look("PostgreSQL", DATABASE_URL=change(postgres_url, path="/nowhere"))
        assert "createdb nowhere" in found.fix

    def test_does_not_listen(self) -> None:
        found = look("PostgreSQL", DATABASE_URL=f"postgresql://u:p@{CLOSED}/weir")
        assert found.fix == "nothing listens there: start it, or set DATABASE_URL to the host and port where it listens"

    def test_does_not_listen_and_is_one_that_make_up_starts(self) -> None:
        found = asyncio.run(examine(env={"DATABASE_URL": f"postgresql://u:p@{CLOSED}/weir"}, ports={9}))[0]
        assert found.fix == "nothing listens there: `make up` starts it (`make ps` says whether it runs)"

    def test_is_a_name_that_no_machine_has(self) -> None:
        found = look("PostgreSQL", DATABASE_URL="postgresql://u:p@nowhere.invalid/weir")
        assert found.fix == "no machine has this name: correct the host in DATABASE_URL"

    def test_keeps_another_encoding(self, postgres_url: str) -> None:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("DROP DATABASE IF EXISTS latin")
            connection.execute("CREATE DATABASE latin ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
        try:
            found = look("PostgreSQL", DATABASE_URL=change(postgres_url, path="/latin"))
        finally:
            with psycopg.connect(postgres_url, autocommit=True) as connection:
                connection.execute("DROP DATABASE latin WITH (FORCE)")
        assert not found.is_good
        assert "ENCODING 'UTF8'" in found.fix


class TestRedis:
    def test_loses_what_it_holds_at_a_restart(self, valkey_url: str) -> None:
        """The tests' own server is without persistence: that is what is said of it."""
        found = look("Redis", REDIS_URL=valkey_url)
        assert found.fix == "set appendonly yes"

    def test_refuses_the_password(self, valkey_url: str) -> None:
        found = look("Redis", REDIS_URL=change(valkey_url, password="wrong"))
        assert not found.is_good
        assert "REDIS_URL" in found.fix

    def test_names_the_setting_that_the_broker_falls_back_to(self) -> None:
        found = look("broker", REDIS_URL=f"redis://{CLOSED}/0")
        assert "BROKER_URL (by default REDIS_URL)" in found.fix

    def test_carries_a_message(self, valkey_url: str) -> None:
        assert look("broker", REDIS_URL=valkey_url).is_good


class TestS3:
    def test_is_well(self, s3_url: str) -> None:
        assert look("S3", S3_URL=s3_url).is_good

    def test_refuses_the_secret(self, s3_url: str) -> None:
        found = look("S3", S3_URL=change(s3_url, password="wrong"))
        assert "right user and password into S3_URL" in found.fix


class TestClickHouse:
    def test_does_not_listen(self) -> None:
        found = look("ClickHouse", CLICKHOUSE_URL=f"clickhouse://u:p@{CLOSED}/weir")
        assert "nothing listens there" in found.fix

    def test_names_what_is_not_set(self) -> None:
        assert look("ClickHouse").fix == "`make up` starts one here, or set CLICKHOUSE_URL"


@pytest.fixture
def other_engine() -> Iterator[str]:
    """A server that answers as an engine of another model would."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"object": "list", "data": [{"id": "another-model", "object": "model"}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Nothing."""

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


class TestEngine:
    def test_serves_another_model(self, other_engine: str) -> None:
        found = look("engine", ENGINE_URL=other_engine, WEIR_MODEL="small")
        assert found.detail == "it serves another-model, not small"
        assert "WEIR_MODEL" in found.fix

    def test_does_not_listen(self) -> None:
        found = look("engine", ENGINE_URL=f"http://{CLOSED}")
        assert found.fix == "nothing listens there: start it, or set ENGINE_URL to the host and port where it listens"
