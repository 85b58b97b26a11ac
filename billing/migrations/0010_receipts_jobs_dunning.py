"""Published receipt keys, background jobs with a claim, and what tenants were told of overdue documents."""

import billing.models.base
import django.db.models.deletion
from django.db import migrations, models

from stores.row_security import guard_table, unguard_table


TRIGGERS = '''
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON billing_dunningstep
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON billing_dunningstep
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER stays_published BEFORE DELETE ON billing_receiptkey
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON billing_receiptkey
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER is_what_it_was BEFORE UPDATE ON billing_receiptkey FOR EACH ROW
    WHEN ((OLD.key_id, OLD.public_key, OLD.published_at) IS DISTINCT FROM (NEW.key_id, NEW.public_key, NEW.published_at))
    EXECUTE FUNCTION billing_refuse_change();
'''
UNDO = '''
DROP TRIGGER append_only ON billing_dunningstep;
DROP TRIGGER never_truncated ON billing_dunningstep;
DROP TRIGGER stays_published ON billing_receiptkey;
DROP TRIGGER never_truncated ON billing_receiptkey;
DROP TRIGGER is_what_it_was ON billing_receiptkey;
'''


class Migration(migrations.Migration):

    dependencies = [
        ('billing', '0009_seals'),
        ('tenants', '0010_background_requests'),
    ]

    operations = [
        migrations.CreateModel(
            name='ReceiptKey',
            fields=[
                ('key_id', models.CharField(max_length=16, primary_key=True, serialize=False)),
                ('public_key', models.CharField(help_text='Ed25519, 32 bytes in hex.', max_length=64)),
                ('published_at', models.DateTimeField()),
                ('retired_at', models.DateTimeField(help_text='Signs no more since; what it signed stays good.', null=True)),
            ],
            options={
                'ordering': ['-published_at'],
            },
        ),
        migrations.CreateModel(
            name='BillingJob',
            fields=[
                ('id', models.UUIDField(default=billing.models.base.new_id, editable=False, primary_key=True, serialize=False)),
                ('kind', models.CharField(choices=[('close', 'Seal a period'), ('correct', 'Look for late usage'), ('issue', 'Issue documents'), ('dunning', 'Remind of what is overdue')], max_length=20)),
                ('subject', models.CharField(blank=True, help_text="What it is about: a period's id; empty = all.", max_length=64)),
                ('state', models.CharField(choices=[('waiting', 'Waiting'), ('running', 'Running'), ('done', 'Done'), ('failed', 'Failed')], default='waiting', max_length=10)),
                ('asked_by', models.CharField(max_length=200)),
                ('asked_at', models.DateTimeField()),
                ('due_at', models.DateTimeField(help_text='Not before.')),
                ('attempts', models.PositiveSmallIntegerField(default=0)),
                ('claimed_by', models.CharField(blank=True, max_length=200)),
                ('claimed_until', models.DateTimeField(null=True)),
                ('progress', models.CharField(blank=True, max_length=200)),
                ('result', models.TextField(blank=True, help_text='What came of it, or why it failed.')),
                ('finished_at', models.DateTimeField(null=True)),
            ],
            options={
                'verbose_name': 'job',
                'ordering': ['-asked_at'],
                'indexes': [models.Index(condition=models.Q(('state__in', ('waiting', 'running'))), fields=['due_at'], name='job_due')],
                'constraints': [models.UniqueConstraint(condition=models.Q(('state__in', ('waiting', 'running'))), fields=('kind', 'subject'), name='billing_job_open_once')],
            },
        ),
        migrations.CreateModel(
            name='DunningStep',
            fields=[
                ('id', models.UUIDField(default=billing.models.base.new_id, editable=False, primary_key=True, serialize=False)),
                ('level', models.PositiveSmallIntegerField(help_text='1 = reminder, 2 = second reminder, 3 = last notice.')),
                ('due', models.DecimalField(decimal_places=9, help_text='What was still to be paid.', max_digits=20)),
                ('told_at', models.DateTimeField()),
                ('invoice', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='dunning_steps', to='billing.invoice')),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='dunning_steps', to='tenants.tenant')),
            ],
            options={
                'ordering': ['told_at', 'id'],
                'constraints': [models.UniqueConstraint(fields=('invoice', 'level'), name='dunning_level_once')],
            },
        ),
        migrations.RunSQL(TRIGGERS, UNDO),
        migrations.RunSQL(
            guard_table('billing_dunningstep', verbs='SELECT'), unguard_table('billing_dunningstep')
        ),
    ]
