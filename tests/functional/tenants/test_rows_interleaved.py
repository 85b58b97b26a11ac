"""Ten thousand uses of one pooled PostgreSQL connection by tenants in turn, however each use ends.

The pool has one connection: whoever comes next gets what the last one left. Threads and the event loop take turns in an
order that a seed decides for what is done, and the pool for who is next.
"""

import asyncio
import inspect
import random
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from asgiref.sync import sync_to_async
from django.db import DataError, ProgrammingError, connection, connections, transaction

from stores.row_security import APP_ROLE
from tenants.models import ApiKey, Project, Tenant
from tenants.row_scope import as_tenant
from tests.functional.tenants.conftest import Customer

USES = 10_000
TASKS = 6
SEED = 20_270_115


def seen() -> set[uuid.UUID]:
    """Whose keys raw SQL without a filter shows."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT DISTINCT tenant_id FROM tenants_apikey")
        return {found for (found,) in cursor.fetchall()}


def who() -> tuple[str, str]:
    """Who the connection is, and which tenant it has."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_user, coalesce(current_setting('weir.tenant', true), '')")
        role, tenant = cursor.fetchone()
        return role, tenant


@dataclass
class Uses:
    """What may be done with the connection; each ends by giving it back. `mine` is the tenant, `other` is not."""

    login: str
    everybody: set[uuid.UUID]
    backends: set[int] = field(default_factory=set)
    done: Counter[str] = field(default_factory=Counter)

    def reads(self, mine: Tenant, other: Tenant) -> None:
        with transaction.atomic(), as_tenant(mine.id):
            assert seen() == {mine.id}
            assert who() == (APP_ROLE, str(mine.id))
            assert not Tenant.objects.filter(id=other.id).exists()

    def rolls_back(self, mine: Tenant, other: Tenant) -> None:
        with transaction.atomic(), as_tenant(mine.id):
            Project.objects.create(tenant=mine, name=f"lost {uuid.uuid4()}")
            transaction.set_rollback(True)

    def fails_in_python(self, mine: Tenant, other: Tenant) -> None:
        with pytest.raises(ZeroDivisionError), transaction.atomic(), as_tenant(mine.id):
            _ = 1 // len(seen() - {mine.id})

    def fails_in_sql(self, mine: Tenant, other: Tenant) -> None:
        """The transaction is aborted: nothing more can be said in it, not even that the tenant leaves."""
        with pytest.raises(DataError), transaction.atomic(), as_tenant(mine.id), connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0")

    def writes_to_another(self, mine: Tenant, other: Tenant) -> None:
        with pytest.raises(ProgrammingError, match="row-level"), transaction.atomic(), as_tenant(mine.id):
            Project.objects.create(tenant=other, name="theirs")

    def fails_in_a_savepoint(self, mine: Tenant, other: Tenant) -> None:
        with transaction.atomic(), as_tenant(mine.id):
            with pytest.raises(DataError), transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SELECT 1 / 0")
            assert seen() == {mine.id}

    def enters_in_a_savepoint_that_fails(self, mine: Tenant, other: Tenant) -> None:
        """What was entered there ends there; the next tenant of the same transaction sees its own."""
        with transaction.atomic():
            with pytest.raises(DataError), transaction.atomic(), as_tenant(mine.id), connection.cursor() as cursor:
                cursor.execute("SELECT 1 / 0")
            assert who() == (self.login, "")
            with as_tenant(other.id):
                assert seen() == {other.id}
            assert who() == (self.login, "")

    def is_nobody(self, mine: Tenant, other: Tenant) -> None:
        """No tenant, no rows."""
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL ROLE {APP_ROLE}")
            assert seen() == set()
            assert ApiKey.objects.count() == 0

    def is_the_operator(self, mine: Tenant, other: Tenant) -> None:
        assert seen() == self.everybody

    def is_cut_off(self, mine: Tenant, other: Tenant) -> None:
        """The connection goes back in the middle of a transaction."""
        connection.ensure_connection()
        connection.set_autocommit(False)
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('role', %s, true), set_config('weir.tenant', %s, true)", [
                APP_ROLE, str(mine.id),
            ])  # fmt: skip
        assert seen() == {mine.id}

    def use(self, name: str, mine: Tenant, other: Tenant) -> None:
        """Once: first it is seen that nobody has left anything."""
        try:
            assert who() == (self.login, "")
            self.backends.add(connection.connection.info.backend_pid)
            getattr(self, name)(mine, other)
            self.done[name] += 1
        finally:
            give_back()


KINDS = [name for name, member in vars(Uses).items() if inspect.isfunction(member) and name[0] != "_" and name != "use"]


def give_back() -> None:
    """Of the thread that this runs in."""
    connection.close()


@pytest.fixture
def pool_of_one(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Django's own pool, with one connection for all threads."""
    caplog.set_level("ERROR", logger="psycopg.pool")  # it warns of each use that is cut off
    given = connections.settings["default"]
    before = given["OPTIONS"], given["CONN_MAX_AGE"]
    connections["default"].close()
    given["OPTIONS"] = given["OPTIONS"] | {"pool": {"min_size": 1, "max_size": 1, "timeout": 60}}
    given["CONN_MAX_AGE"] = 0
    try:
        yield
    finally:
        connections["default"].close()
        connections["default"].close_pool()
        given["OPTIONS"], given["CONN_MAX_AGE"] = before


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.django_db(transaction=True)
class TestOneConnection:
    async def test_t02_never_shows_one_tenant_what_is_another_s(
        self, acme: Customer, mallory: Customer, pool_of_one: None
    ) -> None:
        both = (acme.tenant, mallory.tenant)
        login, _ = await sync_to_async(who)()
        await sync_to_async(give_back)()
        uses = Uses(login=login, everybody={tenant.id for tenant in both})
        dice = random.Random(SEED)
        plan = iter([(dice.choice(KINDS), *dice.sample(both, 2), dice.random() < 0.1) for _ in range(USES)])

        async def work() -> None:
            for name, mine, other, on_the_loop in plan:
                if on_the_loop:  # the ORM's own async calls; they are nobody's but the operator's
                    assert await ApiKey.objects.acount() == 2
                    await sync_to_async(give_back)()
                await sync_to_async(uses.use, thread_sensitive=on_the_loop)(name, mine, other)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(TASKS):
                tasks.create_task(work())
        assert uses.done.total() == USES
        assert set(uses.done) == set(KINDS)
        assert len(uses.backends) == 1
        left = await Project.objects.acount()
        await sync_to_async(give_back)()
        assert left == 2
