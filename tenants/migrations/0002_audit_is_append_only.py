"""The audit trail is append-only: the database refuses to change or delete an entry, whoever asks."""

from django.db import migrations

FORWARD = """
CREATE FUNCTION tenants_auditentry_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit trail is append-only' USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER tenants_auditentry_append_only
    BEFORE UPDATE OR DELETE ON tenants_auditentry
    FOR EACH ROW EXECUTE FUNCTION tenants_auditentry_refuse();
"""
BACKWARD = """
DROP TRIGGER tenants_auditentry_append_only ON tenants_auditentry;
DROP FUNCTION tenants_auditentry_refuse();
"""


class Migration(migrations.Migration):
    dependencies = [("tenants", "0001_initial")]
    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
