"""Row-level security under every table that belongs to a tenant, billing's first ones too.

A table that is made later joins in the migration that makes it; `tests/architecture` finds one that does not.
"""

from django.db import migrations

from stores.row_security import guard_child, guard_table, make_roles, share_table, unguard_table, unshare_table

_WRITES = "SELECT, INSERT, UPDATE"
_GUARDED = {
    "tenants_tenant": guard_table("tenants_tenant", tenant="id", verbs="SELECT, UPDATE"),
    "tenants_project": guard_table("tenants_project", verbs=_WRITES),
    "tenants_member": guard_table("tenants_member", verbs=_WRITES),
    "tenants_apikey": guard_table("tenants_apikey", verbs=_WRITES),
    "tenants_limitsetting": guard_table("tenants_limitsetting"),
    "tenants_outboxevent": guard_table("tenants_outboxevent", verbs="SELECT, INSERT"),
    "tenants_auditentry": guard_table("tenants_auditentry", verbs="SELECT"),
    "tenants_idempotentwrite": guard_table("tenants_idempotentwrite"),
    "billing_priceversion": guard_table("billing_priceversion", verbs="SELECT", shared=True),
    "billing_ledgeraccount": guard_table("billing_ledgeraccount", verbs="SELECT"),
    "billing_ledgerentry": guard_child(
        "billing_ledgerentry", column="account_id", parent="billing_ledgeraccount", verbs="SELECT"
    ),
    "billing_ledgertransaction": guard_child(
        "billing_ledgertransaction",
        column="id",
        parent="billing_ledgerentry",
        parent_column="transaction_id",
        verbs="SELECT",
    ),
    "billing_usageposting": guard_table("billing_usageposting", verbs="SELECT"),
}
# Belong to nobody; a tenant's request reads them. Of a person no more than a member list shows.
_SHARED = {
    "tenants_plan": share_table("tenants_plan"),
    "controlplane_servedmodel": share_table("controlplane_servedmodel"),
    "safety_policy": share_table("safety_policy"),
    "auth_user": share_table("auth_user", columns="id, username, email, first_name, last_name, is_active"),
}


class Migration(migrations.Migration):
    dependencies = [
        ("auth", "0012_alter_user_first_name_max_length"),
        ("billing", "0002_append_only_and_balanced"),
        ("controlplane", "0001_initial"),
        ("safety", "0001_policies"),
        ("tenants", "0004_keys_rotate_and_writes_repeat"),
    ]

    operations = [
        migrations.RunSQL(make_roles(), migrations.RunSQL.noop),  # the cluster's other databases may use the roles
        *(migrations.RunSQL(sql, unguard_table(table)) for table, sql in _GUARDED.items()),
        *(migrations.RunSQL(sql, unshare_table(table)) for table, sql in _SHARED.items()),
    ]
