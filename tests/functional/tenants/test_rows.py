"""Row-level security on real PostgreSQL: the net under a forgotten filter."""

import uuid

import pytest
from django.db import DatabaseError, ProgrammingError, connection, transaction

from stores.row_security import APP_ROLE, OPERATOR_ROLE, enter_tenant, guard_table, make_roles
from tenants import services
from tenants.models import ApiKey, LimitSetting, OutboxEvent, Project, Tenant
from tenants.row_scope import as_tenant
from tests.functional.tenants.conftest import Customer

pytestmark = pytest.mark.django_db

OWNED = ("tenants_project", "tenants_apikey", "tenants_limitsetting", "tenants_outboxevent")


def rows(table: str) -> set[uuid.UUID]:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT tenant_id FROM {table} WHERE tenant_id IS NOT NULL")
        return {found for (found,) in cursor.fetchall()}


def now() -> tuple[str, str]:
    """Who the connection is, and which tenant it has."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_user, current_setting('weir.tenant', true)")
        role, tenant = cursor.fetchone()
        return role, tenant or ""


@pytest.fixture
def both(acme: Customer, mallory: Customer) -> tuple[Customer, Customer]:
    for who in (acme, mallory):
        services.set_limits(tenant=who.tenant, caps={"tokens_per_day": 5})
    return acme, mallory


class TestOneTenant:
    def test_t02_raw_sql_without_a_filter_sees_its_rows_only(self, both: tuple[Customer, Customer]) -> None:
        for who in both:
            with transaction.atomic(), as_tenant(who.tenant.id):
                assert {table: rows(table) for table in OWNED} == {table: {who.tenant.id} for table in OWNED}
                assert [tenant.id for tenant in Tenant.objects.all()] == [who.tenant.id]
                assert ApiKey.objects.count() == 1
        assert rows("tenants_project") == {both[0].tenant.id, both[1].tenant.id}

    def test_writes_for_another_are_refused(self, both: tuple[Customer, Customer]) -> None:
        acme, mallory = both
        for write in (
            lambda: Project.objects.create(tenant=mallory.tenant, name="theirs"),
            lambda: LimitSetting.objects.create(
                tenant=mallory.tenant, scope="tenant", metric="requests_per_minute", cap=1
            ),
            lambda: OutboxEvent.objects.create(name="tenant.closed", tenant_id=mallory.tenant.id, body={}),
            lambda: Project.objects.filter(id=acme.project.id).update(tenant=mallory.tenant),
        ):
            with (
                pytest.raises(ProgrammingError, match="row-level security"),
                transaction.atomic(),
                as_tenant(acme.tenant.id),
            ):
                write()
        with transaction.atomic(), as_tenant(acme.tenant.id):
            assert Project.objects.filter(id=mallory.project.id).update(name="mine") == 0
            assert ApiKey.objects.filter(id=mallory.key.id).update(name="mine") == 0
            assert LimitSetting.objects.filter(tenant=mallory.tenant).delete()[0] == 0
        mallory.project.refresh_from_db()
        assert mallory.project.name == "default"

    def test_may_not_delete_write_the_trail_or_read_passwords(self, both: tuple[Customer, Customer]) -> None:
        acme, _ = both
        for statement in (
            "DELETE FROM tenants_project",
            "DELETE FROM tenants_tenant",
            "DELETE FROM tenants_auditentry",
            "INSERT INTO tenants_tenant (id) VALUES (gen_random_uuid())",
            "SELECT password FROM auth_user",
            "SELECT * FROM django_session",
            "TRUNCATE tenants_auditentry",
        ):
            with (
                pytest.raises(ProgrammingError, match="permission denied"),
                transaction.atomic(),
                as_tenant(acme.tenant.id),
                connection.cursor() as cursor,
            ):
                cursor.execute(statement)


class TestNoTenant:
    def test_t02_shows_no_rows(self, both: tuple[Customer, Customer]) -> None:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute(f"SET LOCAL ROLE {APP_ROLE}")
            assert {table: rows(table) for table in OWNED} == {table: set() for table in OWNED}
            assert not Tenant.objects.exists()
            transaction.set_rollback(True)

    def test_of_nobody_shows_no_rows_and_takes_none(self, both: tuple[Customer, Customer]) -> None:
        acme, _ = both
        with transaction.atomic(), as_tenant(uuid.uuid4()):
            assert not Tenant.objects.exists()
        with pytest.raises(ProgrammingError), transaction.atomic(), as_tenant(uuid.uuid4()):
            Project.objects.create(tenant_id=acme.tenant.id, name="theirs")


class TestOperator:
    def test_sees_everything_without_being_a_superuser(self, both: tuple[Customer, Customer]) -> None:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("CREATE ROLE plain LOGIN")
                cursor.execute(f"GRANT {OPERATOR_ROLE} TO plain")
                cursor.execute("SET LOCAL ROLE plain")
            assert rows("tenants_project") == {who.tenant.id for who in both}
            Project.objects.filter(id=both[0].project.id).update(name="renamed")
            transaction.set_rollback(True)

    def test_the_owner_of_a_table_is_held_to_its_policies_too(self, both: tuple[Customer, Customer]) -> None:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("CREATE ROLE landlord")
                cursor.execute("CREATE TABLE hut (id int, tenant_id uuid)")
                cursor.execute("INSERT INTO hut VALUES (1, %s), (2, NULL)", [both[0].tenant.id])
                cursor.execute(guard_table("hut", verbs="SELECT", shared=True))
                cursor.execute("ALTER TABLE hut OWNER TO landlord")
                cursor.execute("SET LOCAL ROLE landlord")
                cursor.execute("SELECT count(*) FROM hut")
                assert cursor.fetchone() == (0,)
                for who, seen in ((both[0], 2), (both[1], 1)):
                    cursor.execute("RESET ROLE")
                    cursor.execute(enter_tenant(), [str(who.tenant.id)])
                    cursor.execute("SELECT count(*) FROM hut")
                    assert cursor.fetchone() == (seen,)
            transaction.set_rollback(True)

    def test_roles_that_may_not_be_made_are_asked_of_an_administrator(self, db: None) -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("CREATE ROLE tenantless")
            cursor.execute("SET LOCAL ROLE tenantless")
            with pytest.raises(DatabaseError, match="may not make the roles") as refused, transaction.atomic():
                cursor.execute(make_roles())
            assert "As an administrator: CREATE ROLE weir_app" in str(refused.value)
            transaction.set_rollback(True)


class TestConnection:
    def lose(self, who: Customer, turn: int) -> None:
        """Writes as a tenant and fails."""
        with transaction.atomic(), as_tenant(who.tenant.id):
            Project.objects.create(tenant=who.tenant, name=f"lost {turn}")
            raise ZeroDivisionError

    @pytest.mark.django_db(transaction=True)
    def test_t02_of_one_pool_serves_tenants_in_turn_and_keeps_nothing_of_them(
        self, both: tuple[Customer, Customer]
    ) -> None:
        login, _ = now()
        for turn in range(300):
            who = both[turn % 2]
            with transaction.atomic(), as_tenant(who.tenant.id):
                assert rows("tenants_apikey") == {who.tenant.id}
                assert now() == (APP_ROLE, str(who.tenant.id))
                if turn % 3 == 0:
                    transaction.set_rollback(True)
            if turn % 5 == 0:
                with pytest.raises(ZeroDivisionError):
                    self.lose(who, turn)
            assert now() == (login, "")
        assert Project.objects.count() == 2

    def test_inside_a_longer_transaction_is_the_login_users_again_afterwards(self, acme: Customer) -> None:
        login, _ = now()
        with transaction.atomic(), as_tenant(acme.tenant.id):
            assert now()[0] == APP_ROLE
        assert now() == (login, "")

    @pytest.mark.django_db(transaction=True)
    def test_is_not_entered_outside_of_a_transaction(self) -> None:
        with pytest.raises(RuntimeError, match="inside a transaction"), as_tenant(uuid.uuid4()):
            pass
