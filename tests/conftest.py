"""Fixtures of all tests: real stores, started once per session and only when a test asks.

The addresses are known, and in the environment, before Django reads its settings; the servers start in the fixtures.
Nothing of a platform that runs beside the tests is read: they have a home of their own.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import django
import pytest
from django.conf import settings as django_settings
from hypothesis import settings
from redis.asyncio import Redis
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from controlplane.env import environment
from controlplane.local.paths import sweep_short_paths
from controlplane.local.testing import Stores
from stores.redis import open_redis

# Examples per property; no deadline, because the machine's load is not what a property is about.
for _name, _examples in (("dev", 50), ("ci", 200), ("nightly", 5000)):
    settings.register_profile(_name, max_examples=_examples, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

_MADE_BY_MIGRATIONS = {"auth_group", "auth_group_permissions", "auth_permission", "django_content_type"}
_REAL = ("e2e/", "contract/workers/", "functional/workers/test_vllm.py")
_HOME = Path(tempfile.mkdtemp(prefix="weir-tests-"))
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
(_HOME / "static").mkdir()  # WhiteNoise warns of a folder that is not there, and a warning is an error

_STORES = Stores()
_STORES.fill_environment()
os.environ["WEIR_HOME"] = str(_HOME)
os.environ["CLICKHOUSE_URL"] = f"chdb+unix://{_HOME}/run/meter.sock"
os.environ["WEIR_SECRET"] = "a-root-secret-that-only-tests-use-0123456789"
os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
environment.cache_clear()
django.setup()
# A strong one takes half a second for each person that a test makes. Processes of a platform keep it.
django_settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


class ByPlatform(LoadScopeScheduling):
    """Tests that share a platform, and all of real vLLM, which takes both cores, run in one process; others by file."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0].removeprefix("tests/")
        if file.startswith(_REAL):
            return "platform"
        return str(Path(file).parent) if "/processes/" in file else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByPlatform:
    """What `pytest -n 2` divides the tests by."""
    return ByPlatform(config, log)


@pytest.fixture(scope="session")
def stores() -> Iterator[Stores]:
    """The stores of this session; stopped when it ends."""
    yield _STORES
    _STORES.stop()


@pytest.fixture(scope="session")
def postgres_url(stores: Stores) -> str:
    """DATABASE_URL of a real PostgreSQL."""
    return stores.postgres_url()


@pytest.fixture(scope="session")
def valkey_url(stores: Stores) -> str:
    """REDIS_URL of a real Valkey; database 0 is emptied before each test that takes `redis`."""
    return stores.valkey_url()


@pytest.fixture(scope="session")
def s3_url(stores: Stores) -> str:
    """S3_URL of a real S3 server; its bucket exists."""
    return stores.s3_url()


@pytest.fixture(scope="session")
def django_db_modify_db_settings(postgres_url: str) -> None:
    """Starts PostgreSQL before pytest-django makes its test database, and only then."""
    from django.db import connections

    from controlplane.settings import database_from_url

    for given in (django_settings.DATABASES["default"], connections["default"].settings_dict):
        given.update(database_from_url(postgres_url))


@pytest.fixture(autouse=True, scope="session")
def _leaves_no_short_paths(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A platform that a test killed, or a layout that nothing ran in, leaves the link that leads to its folder."""
    yield
    sweep_short_paths(under=tmp_path_factory.getbasetemp())


@pytest.fixture(autouse=True, scope="session")
def _empties_only_what_is_filled() -> Iterator[None]:
    """Between tests Django truncates every table and makes anew what migrations made, which takes ten times the time of
    emptying the few with rows and keeping the rest. Tables that refuse it do so by triggers, which sleep meanwhile.
    """
    from django.core.management.commands import flush
    from django.db.backends.postgresql.operations import DatabaseOperations

    def sql_flush(self: DatabaseOperations, style: Any, tables: Sequence[str], **kwargs: Any) -> list[str]:
        names = {table: self.quote_name(table) for table in tables if table not in _MADE_BY_MIGRATIONS}
        asked = [f"SELECT '{table}' WHERE EXISTS (SELECT FROM {name})" for table, name in names.items()]
        with self.connection.cursor() as cursor:
            cursor.execute(" UNION ALL ".join(asked))
            filled = [row[0] for row in cursor.fetchall()]
        return ["SET LOCAL session_replication_role = replica", *[f"DELETE FROM {names[table]}" for table in filled]]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DatabaseOperations, "sql_flush", sql_flush)
        patch.setattr(flush, "emit_post_migrate_signal", lambda *args, **kwargs: None)
        yield


@pytest.fixture
async def redis(valkey_url: str) -> AsyncIterator[Redis]:
    """A client on an empty database, opened as every process of the platform opens one."""
    client = open_redis(valkey_url)
    await client.flushall()
    yield client
    await client.aclose(close_connection_pool=True)
