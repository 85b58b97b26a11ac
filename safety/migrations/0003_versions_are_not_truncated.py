"""TRUNCATE fires no row's trigger: published versions refuse it by the statement, their owner's too."""

from django.db import migrations

FORWARD = """
CREATE TRIGGER safety_policyversion_stays BEFORE TRUNCATE ON safety_policyversion
    FOR EACH STATEMENT EXECUTE FUNCTION safety_refuse_change();
"""


class Migration(migrations.Migration):
    dependencies = [("safety", "0002_versions_never_change")]
    operations = [migrations.RunSQL(FORWARD, "DROP TRIGGER safety_policyversion_stays ON safety_policyversion;")]
