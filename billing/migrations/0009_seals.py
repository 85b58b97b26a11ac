"""Signed heads over the receipts of sealed hours; documents keep the head and what the ledger had when they were issued."""

import billing.models.base
import django.db.models.deletion
from django.db import migrations, models

from stores.row_security import guard_child, unguard_table

TRIGGERS = """
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON billing_periodseal
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON billing_periodseal
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
"""


class Migration(migrations.Migration):

    dependencies = [
        ('billing', '0008_documents'),
    ]

    operations = [
        migrations.CreateModel(
            name='PeriodSeal',
            fields=[
                ('id', models.UUIDField(default=billing.models.base.new_id, editable=False, primary_key=True, serialize=False)),
                ('revision', models.PositiveSmallIntegerField()),
                ('prev_head', models.CharField(max_length=64)),
                ('head', models.CharField(max_length=64)),
                ('requests', models.BigIntegerField()),
                ('key_id', models.CharField(max_length=16)),
                ('signature', models.CharField(max_length=128)),
                ('period', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='seals', to='billing.billingperiod')),
            ],
            options={
                'ordering': ['period', 'revision'],
            },
        ),
        migrations.AddConstraint(
            model_name='periodseal',
            constraint=models.UniqueConstraint(fields=('period', 'revision'), name='period_seal_once'),
        ),
        migrations.AddField(
            model_name='periodhour',
            name='merkle_root',
            field=models.CharField(blank=True, default='', help_text="Of the hour's receipts.", max_length=64),
        ),
        migrations.AddField(
            model_name='invoice',
            name='seal_head',
            field=models.CharField(blank=True, default='', help_text='Of the usage it was rated from.', max_length=64),
        ),
        migrations.AddField(
            model_name='invoice',
            name='usage_posted',
            field=models.DecimalField(decimal_places=9, default=0, help_text="What the ledger had for the period's usage when this was issued.", max_digits=38),
            preserve_default=False,
        ),
        migrations.RunSQL(TRIGGERS),
        migrations.RunSQL(
            guard_child("billing_periodseal", column="period_id", parent="billing_billingperiod", verbs="SELECT"),
            unguard_table("billing_periodseal"),
        ),
    ]
