"""Permissions of the console's pages, and the table of Django's cache (what `createcachetable` makes)."""

from django.db import migrations, models

CACHE_TABLE = """
CREATE TABLE controlplane_cache (
    cache_key varchar(255) NOT NULL PRIMARY KEY,
    value text NOT NULL,
    expires timestamp with time zone NOT NULL
);
CREATE INDEX controlplane_cache_expires ON controlplane_cache (expires);
"""


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="ConsolePage",
            fields=[("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"))],
            options={
                "permissions": [
                    ("open_requests", "Can look at requests and their timelines"),
                    ("open_usage", "Can look at usage"),
                    ("open_engines", "Can look at running engines"),
                    ("open_limits", "Can look at limits as they stand"),
                    ("open_refusals", "Can look up why a request was refused"),
                ],
                "managed": False,
                "default_permissions": (),
            },
        ),
        migrations.RunSQL(CACHE_TABLE, "DROP TABLE controlplane_cache"),
    ]
