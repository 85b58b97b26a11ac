"""Background requests: what survives a lost Redis, and their answers for a day."""

from django.db import migrations, models

from stores.row_security import guard_table, unguard_table


class Migration(migrations.Migration):
    dependencies = [("tenants", "0009_constraints_say_what_they_want")]

    operations = [
        migrations.CreateModel(
            name="BackgroundRequest",
            fields=[
                ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("api_key_id", models.UUIDField()),
                ("pool", models.CharField(max_length=100)),
                (
                    "state",
                    models.CharField(
                        choices=[("accepted", "Accepted"), ("queued", "Queued"), ("ended", "Ended")],
                        default="accepted",
                        max_length=10,
                    ),
                ),
                ("head", models.BinaryField()),
                ("body", models.BinaryField(null=True)),
                ("answer", models.BinaryField(null=True)),
                ("key_digest", models.CharField(blank=True, default="", max_length=64)),
                ("body_digest", models.CharField(blank=True, default="", max_length=64)),
                ("accepted_at", models.DateTimeField(auto_now_add=True)),
                ("wait_until", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=models.PROTECT, related_name="background_requests", to="tenants.tenant"
                    ),
                ),
            ],
            options={"ordering": ["id"]},
        ),
        migrations.AddIndex(
            model_name="backgroundrequest",
            index=models.Index(
                condition=models.Q(("state", "ended"), _negated=True), fields=["id"], name="background_open"
            ),
        ),
        migrations.AddIndex(
            model_name="backgroundrequest",
            index=models.Index(condition=models.Q(("state", "ended")), fields=["ended_at"], name="background_ended"),
        ),
        migrations.AddIndex(
            model_name="backgroundrequest",
            index=models.Index(
                condition=models.Q(("key_digest", ""), _negated=True),
                fields=["tenant", "key_digest"],
                name="background_by_key",
            ),
        ),
        migrations.RunSQL(
            guard_table("tenants_backgroundrequest", verbs="SELECT, INSERT, UPDATE"),
            unguard_table("tenants_backgroundrequest"),
        ),
    ]
