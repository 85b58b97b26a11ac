"""Each try of a delivery is kept: its history, of the tenant alone."""

import django.db.models.deletion
import tenants.models
from django.db import migrations, models

from stores.row_security import guard_table, unguard_table


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0007_audit_is_not_truncated'),
        ('webhooks', '0002_row_security'),
    ]

    operations = [
        migrations.CreateModel(
            name='Attempt',
            fields=[
                ('id', models.UUIDField(default=tenants.models.new_id, editable=False, primary_key=True, serialize=False)),
                ('replay', models.PositiveIntegerField(help_text='0 = the first round; each replay counts from there.')),
                ('number', models.PositiveSmallIntegerField(help_text='Of this round, from 1.')),
                ('finished_at', models.DateTimeField()),
                ('response_status', models.PositiveSmallIntegerField(null=True)),
                ('response_body', models.TextField(blank=True)),
                ('error', models.CharField(blank=True, max_length=200)),
                ('latency_ms', models.PositiveIntegerField()),
                ('delivery', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='history', to='webhooks.delivery')),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.tenant')),
            ],
            options={
                'verbose_name': 'webhook attempt',
                'ordering': ['-id'],
                'indexes': [models.Index(fields=['tenant', '-id'], name='webhook_attempt_by_tenant')],
                'constraints': [models.UniqueConstraint(fields=('delivery', 'replay', 'number'), name='webhook_attempt_once')],
            },
        ),
        migrations.RunSQL(
            guard_table("webhooks_attempt", verbs="SELECT"), unguard_table("webhooks_attempt")
        ),
    ]
