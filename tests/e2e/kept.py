"""Everything that a running platform keeps, as text to search in: logs, files, and the contents of all four stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import zstandard
from psycopg import sql
from redis import Redis

from stores.clickhouse_socket import ChdbClient
from stores.objects import Objects

# What hands secrets over by design, readable by its owner alone.
SECRET_FILES = {"demo.json", "secrets.json", "env"}
STORE_FOLDERS = {"data", "clickhouse"}  # read through their servers instead
REDIS_DATABASES = 3
Piece = tuple[str, bytes]


def settings_of(home: Path) -> dict[str, str]:
    """`$WEIR_HOME/env`: the addresses of the stores, with their passwords."""
    lines = (line.partition("=") for line in (home / "env").read_text().splitlines() if "=" in line)
    return {name: value.strip("'") for name, _, value in lines}


def everything(home: Path) -> Iterator[Piece]:
    """(place, content) of all that is kept."""
    settings = settings_of(home)
    yield from of_files(home)
    yield from of_postgres(settings["DATABASE_URL"])
    yield from of_redis(settings["REDIS_URL"])
    yield from of_clickhouse(home)
    yield from of_objects(settings["S3_URL"])


def of_files(home: Path) -> Iterator[Piece]:
    """Logs, attempt logs, spools, reports."""
    for path in sorted(home.rglob("*")):
        inside = path.relative_to(home)
        if path.is_file() and inside.parts[0] not in STORE_FOLDERS and inside.name not in SECRET_FILES:
            yield f"file {inside}", path.read_bytes()


def of_postgres(url: str) -> Iterator[Piece]:
    """Every row of every table, as text."""
    with psycopg.connect(url) as connection:
        tables = connection.execute(
            "SELECT schemaname, tablename FROM pg_tables WHERE schemaname = 'public'"
        ).fetchall()
        for schema, table in tables:
            query = sql.SQL("SELECT coalesce(string_agg(t::text, E'\\n'), '') FROM {} t").format(
                sql.Identifier(schema, table)
            )
            row = connection.execute(query).fetchone()
            assert row is not None
            yield f"PostgreSQL {table}", row[0].encode()


def of_redis(url: str) -> Iterator[Piece]:
    """Every key with its value, whatever its type."""
    for database in range(REDIS_DATABASES):
        client = Redis.from_url(urlunsplit(urlsplit(url)._replace(path=f"/{database}")))
        for key in client.scan_iter(count=1_000):
            yield f"Redis {database} {key.decode(errors='replace')}", key + b"\n" + _redis_value(client, key)
        client.close()


def _redis_value(client: Redis, key: bytes) -> bytes:
    read = {
        b"string": lambda: client.get(key),
        b"hash": lambda: client.hgetall(key),
        b"list": lambda: client.lrange(key, 0, -1),
        b"set": lambda: client.smembers(key),
        b"zset": lambda: client.zrange(key, 0, -1, withscores=True),
        b"stream": lambda: client.xrange(key),
    }
    kind = client.type(key)
    return b"" if kind == b"none" else _flat(read[kind]())


def _flat(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, dict):
        return b"\n".join(_flat(part) for pair in value.items() for part in pair)
    if isinstance(value, list | tuple | set):
        return b"\n".join(_flat(part) for part in value)
    return str(value).encode()


def of_clickhouse(home: Path) -> Iterator[Piece]:
    """Every row of every table of ours."""
    client = ChdbClient(path=home / "run" / "meter.sock")
    for table in client.execute("SELECT name FROM system.tables WHERE database = currentDatabase()"):
        rows = client.execute(f"SELECT * FROM {table['name']}")
        yield f"ClickHouse {table['name']}", str(rows).encode()
    client.close()


def of_objects(url: str) -> Iterator[Piece]:
    """Every object, unpacked."""
    objects = Objects.open(url)
    pages = objects._client.get_paginator("list_objects_v2").paginate(Bucket=objects.bucket)
    for page in pages:
        for found in page.get("Contents", []):
            body = objects.get(key=found["Key"])
            if body.startswith(b"\x28\xb5\x2f\xfd"):
                body = zstandard.ZstdDecompressor().decompressobj().decompress(body)
            yield f"S3 {found['Key']}", found["Key"].encode() + b"\n" + body
