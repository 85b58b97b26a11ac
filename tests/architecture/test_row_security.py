"""Every table that names a tenant is behind row-level security: a table that is made later is found here."""

import pytest
from django.apps import apps
from django.db import connection, models

from tenants.models import Tenant


def tables_of_tenants() -> list[str]:
    """Tables of our own models with a foreign key to a tenant, or a plain `tenant_id`."""
    found = []
    for model in apps.get_models():
        names = {
            (isinstance(field, models.ForeignKey) and field.related_model is Tenant) or field.attname == "tenant_id"
            for field in model._meta.local_concrete_fields
        }
        if True in names and model._meta.managed:
            found.append(model._meta.db_table)
    return sorted(found)


@pytest.mark.django_db
class TestRowSecurity:
    def test_stands_on_every_table_that_names_a_tenant(self) -> None:
        tables = tables_of_tenants()
        assert {"tenants_apikey", "tenants_auditentry", "billing_ledgeraccount"} <= set(tables)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT relname FROM pg_class WHERE relrowsecurity AND relforcerowsecurity AND relkind = 'r'"
            )
            forced = {name for (name,) in cursor.fetchall()}
            cursor.execute("SELECT tablename, array_agg(policyname) FROM pg_policies GROUP BY tablename")
            policies = {name: set(names) for name, names in cursor.fetchall()}
        unguarded = [t for t in tables if t not in forced or not {"weir_tenant", "weir_all"} <= policies.get(t, set())]
        assert unguarded == [], "run stores.row_security.guard_table(…) in the migration that makes the table"

    def test_shows_the_app_role_no_table_that_is_neither_guarded_nor_shared_on_purpose(self) -> None:
        shared = {"controlplane_servedmodel", "auth_user"}
        with connection.cursor() as cursor:
            cursor.execute("SELECT relname FROM pg_class WHERE relkind = 'r' AND NOT relrowsecurity")
            open_tables = [name for (name,) in cursor.fetchall()]
            cursor.execute(
                "SELECT relname FROM pg_class JOIN pg_namespace AS space ON space.oid = relnamespace "
                "WHERE relkind = 'r' AND nspname = 'public' AND relname = ANY(%s) "
                "AND (has_table_privilege('weir_app', pg_class.oid, 'SELECT') "
                "OR has_any_column_privilege('weir_app', pg_class.oid, 'SELECT'))",
                [open_tables],
            )
            assert {name for (name,) in cursor.fetchall()} == shared
