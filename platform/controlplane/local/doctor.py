"""Is each store and the engine really usable? Called by `manage.py doctor` and `check --deploy`; imports no Django.

Invariant: every check does what the platform will do there (connect, write, read back, remove) under a name of
its own and within a deadline; a finding that is not good says what to change.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from dotenv import dotenv_values

from controlplane.env import broker_url
from controlplane.local.causes import GENERAL, find_fix
from controlplane.local.model import MODEL
from controlplane.local.paths import Layout
from controlplane.local.ports import PortBook

_DEADLINE_SECONDS = 20.0
_POSTGRES_MIN = 15
_REDIS_MIN = 7
_CLICKHOUSE_MIN = (23, 8)


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found. `fix` is empty when nothing need be done."""

    name: str
    detail: str
    is_good: bool = False
    fix: str = ""


class Unwell(Exception):
    """The thing answers, but is not as it must be."""

    def __init__(self, detail: str, fix: str) -> None:
        super().__init__(detail)
        self.fix = fix


Check = Callable[[Mapping[str, str]], Awaitable[str]]


def hide_password(url: str) -> str:
    """The URL without what must not be printed."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    where = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:…@{where}"))


def is_ours(url: str, *, ports: Collection[int]) -> bool:
    """True for a server that `make up` starts here: `ports` are those that it gave out."""
    parts = urlsplit(url)
    return parts.hostname == "127.0.0.1" and parts.port in ports


async def examine_here() -> list[Finding]:
    """All checks of what this clone is set to use."""
    layout = Layout.of_clone()
    # The strongest last: what `make up` started here, what is written down, what is set now.
    layers = (dotenv_values(layout.env_file), dotenv_values(layout.root / ".env"), os.environ)
    env = {name: value for layer in layers for name, value in layer.items() if value}
    return await examine(env=env, ports=PortBook(path=layout.ports_file).all())


async def examine(*, env: Mapping[str, str], ports: Collection[int] = ()) -> list[Finding]:
    """All checks, one after the other (their output is read by a person). `ports`: of the stores started here."""
    checks: tuple[tuple[str, str, Check], ...] = (
        ("PostgreSQL", "DATABASE_URL", check_postgres),
        ("Redis", "REDIS_URL", check_redis),
        ("broker", "BROKER_URL", check_broker),
        ("ClickHouse", "CLICKHOUSE_URL", check_clickhouse),
        ("S3", "S3_URL", check_s3),
        ("engine", "WEIR_ENGINE", check_engine),
    )
    return [await _run(name, variable, check, env, ports) for name, variable, check in checks]


async def _run(name: str, variable: str, check: Check, env: Mapping[str, str], ports: Collection[int]) -> Finding:
    variable, url = _address(variable, env)
    if not url and variable != "WEIR_ENGINE":
        return Finding(name, f"{variable} is not set", fix=f"`make up` starts one here, or set {variable}")
    where = hide_password(url)
    try:
        async with asyncio.timeout(_DEADLINE_SECONDS):
            return Finding(name, await check(env), is_good=True)
    except Unwell as error:
        return Finding(name, str(error), fix=error.fix)
    except TimeoutError:
        fix = GENERAL.format(variable=variable)
        return Finding(name, f"{where} did not answer in {_DEADLINE_SECONDS:.0f} s", fix=fix)
    except Exception as error:  # noqa: BLE001 - whatever a client raises is the finding
        said = str(error).strip()
        detail = f"{where}: {type(error).__name__}: {' '.join(said.split())[:300]}"
        return Finding(name, detail, fix=find_fix(variable=variable, said=said, is_ours=is_ours(url, ports=ports)))


def _address(variable: str, env: Mapping[str, str]) -> tuple[str, str]:
    """The setting that names the server, and what it says: a setting that falls back says so by its name."""
    if variable == "WEIR_ENGINE" and env.get("ENGINE_URL"):
        return "ENGINE_URL", env["ENGINE_URL"]
    if variable == "BROKER_URL" and not env.get("BROKER_URL") and env.get("REDIS_URL"):
        return "BROKER_URL (by default REDIS_URL)", broker_url(given="", redis=env["REDIS_URL"])
    return variable, env.get(variable, "")


async def check_postgres(env: Mapping[str, str]) -> str:
    """Connects, writes in a temporary table, asks for the version and the extension of price periods."""
    import psycopg

    connection = await psycopg.AsyncConnection.connect(env["DATABASE_URL"], connect_timeout=5)
    async with connection:
        version = connection.info.server_version // 10_000
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise Unwell(f"the database keeps text as {encoding}", "create the database with ENCODING 'UTF8'")
        await connection.execute("CREATE TEMPORARY TABLE weir_doctor (value text)")
        await connection.execute("INSERT INTO weir_doctor VALUES ('é')")
        cursor = await connection.execute("SELECT count(*) FROM pg_available_extensions WHERE name = 'btree_gist'")
        found = await cursor.fetchone()
    if version < _POSTGRES_MIN:
        raise Unwell(f"it is version {version}", f"use PostgreSQL {_POSTGRES_MIN} or newer")
    if found != (1,):
        raise Unwell("the extension btree_gist is not there", "install PostgreSQL's contrib package")
    return f"version {version}, {hide_password(env['DATABASE_URL'])}"


async def check_redis(env: Mapping[str, str]) -> str:
    """Writes and reads by a script, and asks for what the queue relies on: no eviction, persistence."""
    from stores.redis import open_redis

    client = open_redis(env["REDIS_URL"], connections_max=2)
    try:
        key = f"w:doctor:{secrets.token_hex(8)}"
        script = "redis.call('SET', KEYS[1], ARGV[1], 'PX', 10000); return redis.call('GET', KEYS[1])"
        answer: Any = await client.eval(script, 1, key, "é")
        await client.delete(key)
        if answer != "é".encode():
            raise Unwell("a value does not come back as written", "use Redis 7 or newer, or Valkey")
        info: Any = await client.info()
    finally:
        await client.aclose(close_connection_pool=True)
    version = str(info.get("valkey_version") or info.get("redis_version"))
    if int(version.split(".")[0]) < _REDIS_MIN:
        raise Unwell(f"it is version {version}", f"use Redis {_REDIS_MIN} or newer, or Valkey")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise Unwell(
            f"it may evict keys ({policy}): holds and queued requests would be lost", "set maxmemory-policy noeviction"
        )
    if not info.get("aof_enabled"):
        raise Unwell("it keeps nothing on disk: a restart loses queue and limits", "set appendonly yes")
    return f"version {version}, append-only file on, no eviction, {hide_password(env['REDIS_URL'])}"


async def check_broker(env: Mapping[str, str]) -> str:
    """Publishes a message to a queue of its own and takes it back."""
    url = broker_url(given=env.get("BROKER_URL", ""), redis=env.get("REDIS_URL", ""))
    await asyncio.to_thread(_round_trip, url)
    return f"a message went and came back, {hide_password(url)}"


def _round_trip(url: str) -> None:
    from kombu.connection import Connection

    options = {"socket_timeout": 5, "max_retries": 1, "interval_start": 0}  # the person who asked may ask again
    with Connection(url, connect_timeout=5, transport_options=options) as connection:  # type: ignore[no-untyped-call]
        queue = connection.SimpleBuffer(f"weir.doctor.{secrets.token_hex(8)}")
        try:
            queue.put({"say": "é"})
            message = queue.get(timeout=5)
            message.ack()
        finally:
            queue.close()
    if message.payload != {"say": "é"}:
        raise Unwell("a message does not come back as sent", "set BROKER_URL to RabbitMQ, SQS or Redis")


async def check_clickhouse(env: Mapping[str, str]) -> str:
    """Queries through the platform's own port; in local mode that is the meter's socket."""
    from stores.clickhouse_url import is_local, open_clickhouse, socket_path

    url = env["CLICKHOUSE_URL"]
    if is_local(url) and not socket_path(url).exists():
        raise Unwell(
            "the meter, which owns the local ClickHouse, does not run", "`make up`, then `make logs NAME=meter`"
        )
    reader = open_clickhouse(url)
    try:
        rows = await asyncio.to_thread(reader.execute, "SELECT version() AS version, 'é' AS text")
        version = str(rows[0]["version"])
        if tuple(int(part) for part in version.split(".")[:2]) < _CLICKHOUSE_MIN:
            raise Unwell(f"it is version {version}", "use ClickHouse 23.8 or newer")
        tables = await asyncio.to_thread(
            reader.execute,
            "SELECT count() AS found FROM system.tables WHERE database = currentDatabase() AND name = {name:String}",
            {"name": "inference_requests_audit"},
        )
    finally:
        reader.close()
    if rows[0]["text"] != "é":
        raise Unwell("text does not come back as sent", "use a current ClickHouse")
    if not tables[0]["found"]:
        raise Unwell("its tables are missing", "start the meter once: `manage.py meter` makes them")
    return f"version {version}, {hide_password(url)}"


async def check_s3(env: Mapping[str, str]) -> str:
    """Puts, gets and deletes an object in the bucket."""
    await asyncio.to_thread(_object_round_trip, env["S3_URL"])
    return f"an object was put, read and deleted, {hide_password(env['S3_URL'])}"


def _object_round_trip(url: str) -> None:
    from controlplane.local.stores import ensure_bucket, open_s3

    ensure_bucket(url=url)
    client, bucket = open_s3(url=url)
    key = f"doctor/{secrets.token_hex(8)}"
    client.put_object(Bucket=bucket, Key=key, Body="é".encode())
    answer = client.get_object(Bucket=bucket, Key=key)["Body"].read()
    client.delete_object(Bucket=bucket, Key=key)
    if answer != "é".encode():
        raise Unwell("an object does not come back as written", "use another S3 server")


async def check_engine(env: Mapping[str, str]) -> str:
    """One token from ENGINE_URL; or, for an engine of ours, what its worker reports."""
    if env.get("ENGINE_URL"):
        return await _ask_engine(env)
    directory = Path(env.get("WEIR_MODEL_DIR", ""))
    if not (directory / "tokenizer.json").exists():
        raise Unwell(
            f"no tokenizer in WEIR_MODEL_DIR ({directory})", "`make up` makes it, or name the model's directory"
        )
    from controlplane.local import probes
    from controlplane.local.children import NotReady

    try:
        await probes.worker(redis_url=env["REDIS_URL"], worker_id=env.get("WEIR_WORKER_ID", "worker-1"))()
    except NotReady as error:
        raise Unwell(f"the worker: {error}", "`make ps`, then `make logs NAME=worker-1`") from error
    return f"{env.get('WEIR_ENGINE', 'vllm')} serves {directory.name}"


async def _ask_engine(env: Mapping[str, str]) -> str:
    import httpx

    base = env["ENGINE_URL"].rstrip("/").removesuffix("/v1")
    key = env.get("WEIR_ENGINE_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(timeout=_DEADLINE_SECONDS - 1, headers=headers) as client:
        listed = await client.get(f"{base}/v1/models")
        if listed.status_code != httpx.codes.OK:
            raise Unwell(f"{base}/v1/models answers {listed.status_code}", "set WEIR_ENGINE_API_KEY if it wants a key")
        names = [entry["id"] for entry in listed.json()["data"]]
        if not names:
            raise Unwell("it serves no model", "load one there")
        wanted = env.get("WEIR_MODEL") or MODEL
        if wanted not in names:
            raise Unwell(
                f"it serves {', '.join(names)}, not {wanted}",
                "set WEIR_MODEL to its name there and WEIR_MODEL_DIR to its tokenizer, or serve it by this name",
            )
        body = {"model": wanted, "prompt": "A", "max_tokens": 1}
        answer = await client.post(f"{base}/v1/completions", json=body)
    if answer.status_code != httpx.codes.OK or not answer.json().get("usage"):
        raise Unwell(
            f"/v1/completions answers {answer.status_code} {answer.text[:200]}",
            "use an OpenAI-compatible server that sends usage",
        )
    return f"{', '.join(names)} at {base}"
