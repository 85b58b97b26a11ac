"""Engine configurations by version, and what became of each. Both are only added to."""

import django.db.models.deletion
from django.db import migrations, models

TABLES = ("controlplane_engineconfig", "controlplane_engineconfigevent")
KEEP = """
CREATE FUNCTION controlplane_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;
""" + "\n".join(
    f"""CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON {table}
    FOR EACH ROW EXECUTE FUNCTION controlplane_refuse_change();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON {table}
    FOR EACH STATEMENT EXECUTE FUNCTION controlplane_refuse_change();"""
    for table in TABLES
)
RELEASE = (
    "\n".join(f"DROP TRIGGER append_only ON {table}; DROP TRIGGER never_truncated ON {table};" for table in TABLES)
    + "DROP FUNCTION controlplane_refuse_change();"
)


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0002_signin")]

    operations = [
        migrations.CreateModel(
            name="EngineConfig",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("pool", models.SlugField(max_length=100)),
                ("version", models.PositiveIntegerField()),
                ("document", models.JSONField()),
                ("digest", models.CharField(max_length=64)),
                ("note", models.CharField(blank=True, default="", max_length=500)),
                ("created_by", models.CharField(max_length=200)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "verbose_name": "engine configuration",
                "ordering": ["pool", "-version"],
                "constraints": [models.UniqueConstraint(fields=("pool", "version"), name="engineconfig_version_once")],
            },
        ),
        migrations.CreateModel(
            name="EngineConfigEvent",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "kind",
                    models.CharField(
                        choices=[("accepted", "Accepted"), ("refused", "Refused"), ("activated", "Activated")],
                        max_length=10,
                    ),
                ),
                ("text", models.CharField(blank=True, default="", max_length=2000)),
                ("engine_version", models.CharField(blank=True, default="", max_length=60)),
                ("by", models.CharField(max_length=200)),
                ("at", models.DateTimeField(auto_now_add=True)),
                (
                    "config",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="events",
                        to="controlplane.engineconfig",
                    ),
                ),
            ],
            options={"verbose_name": "engine configuration event", "ordering": ["-id"]},
        ),
        migrations.RunSQL(KEEP, RELEASE),
    ]
