"""TRUNCATE fires no row's trigger: the audit trail refuses it by the statement, its owner's too."""

from django.db import migrations

FORWARD = """
CREATE TRIGGER tenants_auditentry_stays BEFORE TRUNCATE ON tenants_auditentry
    FOR EACH STATEMENT EXECUTE FUNCTION tenants_auditentry_refuse();
"""


class Migration(migrations.Migration):
    dependencies = [("tenants", "0006_plans_have_price_lists")]
    operations = [migrations.RunSQL(FORWARD, "DROP TRIGGER tenants_auditentry_stays ON tenants_auditentry;")]
