"""PostgreSQL row-level security as SQL text: the second net under every query of a tenant's own code.

Called by migrations (`migrations.RunSQL(guard_table(…), unguard_table(…))`) of every room, and by tests. Two roles
without login, made once for each cluster: `weir_app` sees the rows of one tenant, named by the setting `weir.tenant`
of the transaction; `weir_operator` sees all. The login user of the platform is a member of both: by itself it is the
operator (migrations, admin, jobs, key resolver), and `SET LOCAL ROLE weir_app` takes that away for one transaction.
Invariant: no setting, no rows. It catches a forgotten filter; it is no sandbox for hostile SQL, which could set both.
"""

import re

APP_ROLE = "weir_app"
OPERATOR_ROLE = "weir_operator"
TENANT_SETTING = "weir.tenant"
# An empty setting is what a transaction leaves behind on its connection. The sub-select is evaluated once a query.
_TENANT = f"(SELECT NULLIF(current_setting('{TENANT_SETTING}', true), '')::uuid)"
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
ALL_VERBS = "SELECT, INSERT, UPDATE, DELETE"


# GRANT … WITH INHERIT came with PostgreSQL 16. A superuser is a member of every role and needs none.
_MAKE_ROLES = """
DO $weir$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['weir_app', 'weir_operator'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = wanted) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
            EXCEPTION
                WHEN duplicate_object OR unique_violation THEN NULL;  -- another database of the cluster was quicker
            END;
        END IF;
        IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
            CONTINUE;
        ELSIF current_setting('server_version_num')::int < 160000 THEN
            EXECUTE format('GRANT %I TO %I', wanted, current_user);
        ELSIF wanted = 'weir_operator' THEN
            EXECUTE format('GRANT %I TO %I WITH INHERIT TRUE, SET TRUE', wanted, current_user);
        ELSE
            EXECUTE format('GRANT %I TO %I WITH INHERIT FALSE, SET TRUE', wanted, current_user);
        END IF;
    END LOOP;
EXCEPTION
    WHEN insufficient_privilege THEN
        RAISE EXCEPTION 'the user % may not make the roles weir_app and weir_operator, nor give them to itself',
            current_user
            USING HINT = format('As an administrator: CREATE ROLE weir_app NOLOGIN; CREATE ROLE weir_operator NOLOGIN; '
                'GRANT weir_app, weir_operator TO %I WITH ADMIN OPTION;', current_user);
END $weir$;
GRANT USAGE ON SCHEMA public TO weir_app, weir_operator;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO weir_operator;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO weir_operator;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO weir_operator;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT USAGE ON SEQUENCES TO weir_operator;
"""


def make_roles() -> str:
    """SQL that makes both roles where they are missing and lets the login user be them.

    Fails, with what an administrator must run, where the login user may not create roles.
    """
    return _MAKE_ROLES


def guard_table(table: str, *, tenant: str = "tenant_id", verbs: str = ALL_VERBS, shared: bool = False) -> str:
    """SQL that shows a tenant the rows whose column `tenant` is its id, and lets it do `verbs` to them.

    `shared`: rows without a tenant are everybody's to read (general prices).
    """
    return _guard(table, f"{_name(tenant)} = {_TENANT}", verbs, f"{_name(tenant)} IS NULL" if shared else None)


def guard_child(table: str, *, column: str, parent: str, parent_column: str = "id", verbs: str = ALL_VERBS) -> str:
    """SQL for a table that has its tenant by another one: its rows are seen where their parent is."""
    own = f"{_name(table)}.{_name(column)}"
    seen = f"EXISTS (SELECT FROM {_name(parent)} AS parent WHERE parent.{_name(parent_column)} = {own})"
    return _guard(table, seen, verbs, None)


def unguard_table(table: str) -> str:
    """SQL that takes back what `guard_table` and `guard_child` did."""
    name = _name(table)
    return "\n".join(
        [
            *(f"DROP POLICY IF EXISTS {policy} ON {name};" for policy in ("weir_tenant", "weir_shared", "weir_all")),
            f"ALTER TABLE {name} NO FORCE ROW LEVEL SECURITY;",
            f"ALTER TABLE {name} DISABLE ROW LEVEL SECURITY;",
            f"REVOKE ALL ON {name} FROM {APP_ROLE};",
        ]
    )


def share_table(table: str, *, columns: str = "") -> str:
    """SQL that lets every tenant read a table that belongs to nobody; only `columns`, where named."""
    return f"GRANT SELECT{f' ({columns})' if columns else ''} ON {_name(table)} TO {APP_ROLE};"


def unshare_table(table: str) -> str:
    """SQL that takes back what `share_table` did."""
    return f"REVOKE ALL ON {_name(table)} FROM {APP_ROLE};"


def enter_tenant() -> str:
    """SQL with one parameter, the tenant's id: what follows in this transaction sees that tenant only."""
    return f"SELECT set_config('role', '{APP_ROLE}', true), set_config('{TENANT_SETTING}', %s, true)"


def leave_tenant() -> str:
    """SQL that makes the rest of the transaction the login user's own again."""
    return f"SELECT set_config('role', 'none', true), set_config('{TENANT_SETTING}', '', true)"


def _guard(table: str, seen: str, verbs: str, shared: str | None) -> str:
    name = _name(table)
    lines = [
        f"ALTER TABLE {name} ENABLE ROW LEVEL SECURITY;",
        f"ALTER TABLE {name} FORCE ROW LEVEL SECURITY;",
        f"CREATE POLICY weir_tenant ON {name} TO {APP_ROLE} USING ({seen}) WITH CHECK ({seen});",
        f"CREATE POLICY weir_all ON {name} TO {OPERATOR_ROLE} USING (true) WITH CHECK (true);",
        f"GRANT {verbs} ON {name} TO {APP_ROLE};",
    ]
    if shared is not None:
        lines.append(f"CREATE POLICY weir_shared ON {name} FOR SELECT TO {APP_ROLE} USING ({shared});")
    return "\n".join(lines)


def _name(text: str) -> str:
    """An SQL name as it is. Raises ValueError for anything that would need quotes."""
    if _NAME.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a plain SQL name")
    return text
