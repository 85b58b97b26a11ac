"""A real server of somebody else: one login that is no superuser, passes by no policy, makes no roles (decision 0006).

It owns the tables that it migrates, so FORCE ROW LEVEL SECURITY is what holds it to their policies.
"""

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

ROOT = Path(__file__).parents[3]

# What the platform does with its one URL: as the login itself it is the operator, as a tenant it is `weir_app`.
SUITE = """
import django; django.setup()
from django.db import DatabaseError, IntegrityError, ProgrammingError, connection, transaction
from tenants import services
from tenants.models import ApiKey, AuditEntry, Plan, Project, Tenant
from tenants.row_scope import as_tenant

def refused(write, words):
    try:
        with transaction.atomic():
            write()
    except DatabaseError as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"not refused: {words}")

def sql(text):
    with connection.cursor() as cursor:
        cursor.execute(text)
        return cursor.fetchall() if cursor.description else []

assert sql("SELECT rolsuper, rolbypassrls, rolcreaterole FROM pg_roles WHERE rolname = current_user") == [(False,) * 3]
assert sql("SELECT count(*) FROM pg_tables WHERE schemaname = 'public' AND tableowner <> current_user") == [(0,)]
plan = services.create_plan(name="plan")
who = {}
for name in ("acme", "mallory"):
    tenant = services.create_tenant(name=name, plan=plan)
    project = services.create_project(tenant=tenant, name="default")
    services.create_key(project=project, name="key")
    services.set_limits(tenant=tenant, caps={"tokens_per_day": 5})
    who[name] = tenant, project
assert Tenant.objects.count() == Project.objects.count() == ApiKey.objects.count() == 2, "the operator sees all"
for name, (tenant, project) in who.items():
    with transaction.atomic(), as_tenant(tenant.id):
        for table in ("tenants_project", "tenants_apikey", "tenants_limitsetting", "tenants_outboxevent"):
            assert set(sql(f"SELECT tenant_id FROM {table} WHERE tenant_id IS NOT NULL")) == {(tenant.id,)}, table
        assert [one.name for one in Tenant.objects.all()] == [name]
        assert Plan.objects.count() == 1
acme, mallory = who["acme"], who["mallory"]

def foreign():
    with as_tenant(acme[0].id):
        Project.objects.create(tenant=mallory[0], name="theirs")

def passwords():
    with as_tenant(acme[0].id):
        sql("SELECT password FROM auth_user")

refused(foreign, "row-level security")
refused(passwords, "permission denied")
with transaction.atomic():
    sql("SET LOCAL ROLE weir_app")
    assert not Project.objects.exists(), "no setting, no rows"
    transaction.set_rollback(True)
assert Project.objects.count() == 2, "the role ended with its transaction"
refused(lambda: sql("TRUNCATE tenants_auditentry"), "append-only")
refused(lambda: sql("TRUNCATE billing_ledgerentry CASCADE"), "append-only")
print("held")
"""


@pytest.fixture
def admin(postgres_url: str) -> Iterator[psycopg.Connection]:
    """The server's own administrator."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for role in ("weir_app", "weir_operator"):
            if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role]).fetchone():
                connection.execute(f"CREATE ROLE {role} NOLOGIN")
        yield connection


@pytest.fixture
def login(admin: psycopg.Connection, postgres_url: str) -> Iterator[tuple[str, str]]:
    """A login with a database of its own, and its URL."""
    name, password = f"plain_{secrets.token_hex(4)}", secrets.token_hex(8)
    admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{password}' NOSUPERUSER NOBYPASSRLS NOCREATEROLE NOCREATEDB")
    admin.execute(f"CREATE DATABASE {name} OWNER {name}")
    parts = urlsplit(postgres_url)
    yield name, urlunsplit(parts._replace(netloc=f"{name}:{password}@{parts.hostname}:{parts.port}", path=f"/{name}"))
    admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    admin.execute(f"DROP OWNED BY {name}")
    admin.execute(f"DROP ROLE {name}")


def run(url: str, redis: str, *command: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "DATABASE_URL": url, "REDIS_URL": redis, "PYTHONPATH": "platform:."}
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=env, capture_output=True, text=True, timeout=150, check=False
    )


class TestPlainLogin:
    def test_migrates_and_is_held_to_every_policy(
        self, admin: psycopg.Connection, login: tuple[str, str], valkey_url: str
    ) -> None:
        name, url = login
        admin.execute(f"GRANT weir_app, weir_operator TO {name} WITH ADMIN OPTION")
        migrated = run(url, valkey_url, "manage.py", "migrate", "--verbosity", "0")
        assert migrated.returncode == 0, migrated.stderr[-2_000:]
        suite = run(url, valkey_url, "-c", SUITE)
        assert (suite.returncode, suite.stdout.strip()) == (0, "held"), suite.stderr[-2_000:]

    def test_without_the_roles_is_told_what_an_administrator_runs(
        self, login: tuple[str, str], valkey_url: str
    ) -> None:
        name, url = login
        migrated = run(url, valkey_url, "manage.py", "migrate", "--verbosity", "0")
        assert migrated.returncode != 0
        assert f"the user {name} may not make the roles weir_app and weir_operator" in migrated.stderr
        assert f"GRANT weir_app, weir_operator TO {name} WITH ADMIN OPTION" in migrated.stderr
