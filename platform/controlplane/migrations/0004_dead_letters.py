"""Permissions of the console's page of dead letters."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("controlplane", "0003_engine_configs")]

    operations = [
        migrations.AlterModelOptions(
            name="consolepage",
            options={
                "default_permissions": (),
                "managed": False,
                "permissions": [
                    ("open_requests", "Can look at requests and their timelines"),
                    ("open_usage", "Can look at usage"),
                    ("open_engines", "Can look at running engines"),
                    ("open_limits", "Can look at limits as they stand"),
                    ("open_refusals", "Can look up why a request was refused"),
                    ("open_dead_letters", "Can look at dead letters and what engines said last"),
                    ("replay_dead_letters", "Can run a dead letter once more"),
                ],
            },
        ),
    ]
