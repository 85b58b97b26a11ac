"""Keys rotate and name networks, limits name models and alerts, POSTs may be repeated."""
import django.contrib.postgres.fields
import django.utils.timezone
import tenants.models
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0003_tenant_policy'),
    ]

    operations = [
        migrations.CreateModel(
            name='IdempotentWrite',
            fields=[
                ('id', models.UUIDField(default=tenants.models.new_id, editable=False, primary_key=True, serialize=False)),
                ('tenant_id', models.UUIDField(null=True)),
                ('caller', models.CharField(max_length=200)),
                ('key_digest', models.CharField(max_length=64)),
                ('request_digest', models.CharField(max_length=64)),
                ('status', models.PositiveSmallIntegerField(null=True)),
                ('answer', models.BinaryField(null=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
            options={
                'ordering': ['id'],
            },
        ),
        migrations.RemoveConstraint(
            model_name='limitsetting',
            name='limit_once_per_owner_and_metric',
        ),
        migrations.AddField(
            model_name='apikey',
            name='allowed_networks',
            field=django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=49), blank=True, default=list, help_text='CIDR blocks it may be used from; empty = from anywhere.', size=None),
        ),
        migrations.AddField(
            model_name='apikey',
            name='expired_at',
            field=models.DateTimeField(blank=True, editable=False, null=True),
        ),
        migrations.AddField(
            model_name='apikey',
            name='pepper_id',
            field=models.CharField(default='', editable=False, help_text='Which pepper the digest is under.', max_length=8),
        ),
        migrations.AddField(
            model_name='apikey',
            name='previous_digest',
            field=models.CharField(editable=False, max_length=64, null=True, unique=True),
        ),
        migrations.AddField(
            model_name='apikey',
            name='previous_expires_at',
            field=models.DateTimeField(editable=False, null=True),
        ),
        migrations.AddField(
            model_name='apikey',
            name='previous_last4',
            field=models.CharField(default='', editable=False, max_length=4),
        ),
        migrations.AddField(
            model_name='apikey',
            name='rotated_at',
            field=models.DateTimeField(editable=False, null=True),
        ),
        migrations.AddField(
            model_name='limitsetting',
            name='alerts',
            field=django.contrib.postgres.fields.ArrayField(base_field=models.PositiveSmallIntegerField(), blank=True, default=tenants.models.alerts, help_text='Percents of a money cap whose crossing is told of; they refuse nothing.', size=None),
        ),
        migrations.AddField(
            model_name='limitsetting',
            name='model',
            field=models.CharField(blank=True, default='', help_text='Empty = all models together.', max_length=200),
        ),
        migrations.AddField(
            model_name='limitsetting',
            name='since',
            field=models.DateTimeField(default=django.utils.timezone.now, editable=False, help_text='When this cap was set.'),
        ),
        migrations.AlterField(
            model_name='limitsetting',
            name='metric',
            field=models.CharField(choices=tenants.models.metrics, max_length=40),
        ),
        migrations.AddConstraint(
            model_name='limitsetting',
            constraint=models.UniqueConstraint(fields=('plan', 'tenant', 'project', 'api_key', 'metric', 'model'), name='limit_once_per_owner_metric_model', nulls_distinct=False),
        ),
        migrations.AddIndex(
            model_name='idempotentwrite',
            index=models.Index(fields=['created_at'], name='idempotent_write_age'),
        ),
        migrations.AddConstraint(
            model_name='idempotentwrite',
            constraint=models.UniqueConstraint(fields=('caller', 'key_digest'), name='idempotent_write_once'),
        ),
    ]
