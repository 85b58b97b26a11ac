"""Row-level security under the tables of this room."""

from django.db import migrations

from stores.row_security import guard_table, unguard_table

_GUARDED = {
    "webhooks_endpoint": "SELECT, INSERT, UPDATE",
    "webhooks_endpointsecret": "SELECT, INSERT, UPDATE, DELETE",
    "webhooks_event": "SELECT, INSERT",
    "webhooks_delivery": "SELECT, INSERT, UPDATE",
}


class Migration(migrations.Migration):
    dependencies = [("tenants", "0005_row_security"), ("webhooks", "0001_initial")]

    operations = [
        migrations.RunSQL(guard_table(table, verbs=verbs), unguard_table(table)) for table, verbs in _GUARDED.items()
    ]
