"""A tenant's request reads the policy of its own tenant and that policy's versions, in PostgreSQL too."""

from django.db import migrations

from stores.row_security import guard_child, share_table, unguard_table, unshare_table


def _own(table: str, column: str) -> str:
    return guard_child(table, column=column, parent="tenants_tenant", parent_column="policy_id", verbs="SELECT")


class Migration(migrations.Migration):
    dependencies = [("safety", "0003_versions_are_not_truncated"), ("tenants", "0005_row_security")]
    operations = [
        migrations.RunSQL(unshare_table("safety_policy"), share_table("safety_policy")),
        migrations.RunSQL(_own("safety_policy", "id"), unguard_table("safety_policy")),
        migrations.RunSQL(_own("safety_policyversion", "policy_id"), unguard_table("safety_policyversion")),
    ]
