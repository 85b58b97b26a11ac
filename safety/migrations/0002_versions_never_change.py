"""A published version is never changed nor deleted, whoever asks."""

from django.db import migrations

CREATE = """
CREATE FUNCTION safety_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a published policy version is never changed' USING ERRCODE = 'restrict_violation';
END
$$;
CREATE TRIGGER safety_policyversion_immutable BEFORE UPDATE OR DELETE ON safety_policyversion
    FOR EACH ROW EXECUTE FUNCTION safety_refuse_change();
"""

DROP = """
DROP TRIGGER safety_policyversion_immutable ON safety_policyversion;
DROP FUNCTION safety_refuse_change();
"""


class Migration(migrations.Migration):
    dependencies = [("safety", "0001_policies")]

    operations = [migrations.RunSQL(sql=CREATE, reverse_sql=DROP)]
