"""T33: the password of the database changes while the platform runs."""

import secrets
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from django.db import OperationalError
from django.db.backends.postgresql.base import DatabaseWrapper
from django.db.utils import ConnectionHandler

from controlplane.database import is_away
from controlplane.settings import database_from_url

pytestmark = pytest.mark.django_db  # to be let at PostgreSQL at all; the connections are the tests' own


@pytest.fixture
def admin(postgres_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def login(admin: psycopg.Connection) -> Iterator[tuple[str, str]]:
    """A login and its password of now."""
    name, password = f"plain_{secrets.token_hex(4)}", secrets.token_hex(8)
    admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")
    yield name, password
    admin.execute(f"DROP ROLE {name}")


def opened(url: str) -> DatabaseWrapper:
    """A connection of Django's as our settings make it of DATABASE_URL."""
    made: DatabaseWrapper = ConnectionHandler({"default": database_from_url(url)})["default"]  # type: ignore[assignment]
    return made


def who(connection: DatabaseWrapper) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_user")
        return str(cursor.fetchone()[0])


class TestPassword:
    def test_t33_is_read_anew_for_each_connection_from_a_password_file(
        self,
        admin: psycopg.Connection,
        login: tuple[str, str],
        postgres_url: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        name, password = login
        parts = urlsplit(postgres_url)
        kept = tmp_path / "pgpass"
        kept.touch(mode=0o600)
        kept.write_text(f"*:*:*:{name}:{password}\n")
        monkeypatch.setenv("PGPASSFILE", str(kept))
        connection = opened(f"postgresql://{name}@{parts.hostname}:{parts.port}{parts.path}")
        try:
            assert who(connection) == name
            new = secrets.token_hex(8)
            admin.execute(f"ALTER ROLE {name} PASSWORD '{new}'")
            assert who(connection) == name  # what is open goes on
            connection.close()
            with pytest.raises(OperationalError, match="password authentication failed"):
                who(connection)
            kept.write_text(f"*:*:*:{name}:{new}\n")
            assert who(connection) == name
        finally:
            connection.close()

    def test_t33_in_the_url_is_the_old_one_and_that_is_said_without_it(
        self, admin: psycopg.Connection, login: tuple[str, str], postgres_url: str
    ) -> None:
        name, password = login
        parts = urlsplit(postgres_url)
        connection = opened(f"postgresql://{name}:{password}@{parts.hostname}:{parts.port}{parts.path}")
        try:
            assert who(connection) == name
            admin.execute(f"ALTER ROLE {name} PASSWORD '{secrets.token_hex(8)}'")
            connection.close()
            with pytest.raises(OperationalError, match="password authentication failed") as refused:
                who(connection)
            assert is_away(refused.value), "a request that meets it is 503, to be tried again"
            assert password not in str(refused.value)
        finally:
            connection.close()
