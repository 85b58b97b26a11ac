"""A tenant's months from draft to paid; what was sealed is only added to. The ledger keeps tokens too."""

import billing.models.base
import django.contrib.postgres.constraints
import django.contrib.postgres.fields.ranges
import django.db.models.deletion
from django.db import migrations, models

from stores.row_security import guard_child, guard_table, unguard_table

KEPT = ("billing_periodhour", "billing_periodusage", "billing_closewaiver")
TRIGGERS = "\n".join(
    f"""CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON {table}
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON {table}
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();"""
    for table in KEPT
) + """
CREATE FUNCTION billing_period_steps() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    may_change text[] := ARRAY['state', 'checked_at', 'sealed_at', 'sealed_by'];
BEGIN
    IF (to_jsonb(NEW) - may_change) <> (to_jsonb(OLD) - may_change) THEN
        RAISE EXCEPTION 'a period is fixed when it is opened' USING ERRCODE = 'restrict_violation';
    END IF;
    IF OLD.state <> 'draft' AND (NEW.checked_at, NEW.sealed_at, NEW.sealed_by)
        IS DISTINCT FROM (OLD.checked_at, OLD.sealed_at, OLD.sealed_by) THEN
        RAISE EXCEPTION 'a sealed period is frozen' USING ERRCODE = 'restrict_violation';
    END IF;
    IF NEW.state <> OLD.state AND (OLD.state, NEW.state) NOT IN (
        ('draft', 'sealed'), ('sealed', 'issued'), ('issued', 'paid'), ('issued', 'void')
    ) THEN
        RAISE EXCEPTION 'a period does not go from % to %', OLD.state, NEW.state USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER period_steps BEFORE UPDATE ON billing_billingperiod
    FOR EACH ROW EXECUTE FUNCTION billing_period_steps();
CREATE TRIGGER period_stays BEFORE DELETE ON billing_billingperiod
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON billing_billingperiod
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
"""
GUARDS = {
    "billing_billingperiod": guard_table("billing_billingperiod", verbs="SELECT"),
    **{
        table: guard_child(table, column="period_id", parent="billing_billingperiod", verbs="SELECT")
        for table in ("billing_periodhour", "billing_periodusage")
    },
}


class Migration(migrations.Migration):

    dependencies = [
        ('billing', '0006_credits'),
        ('tenants', '0007_audit_is_not_truncated'),
    ]

    operations = [
        migrations.AddField(
            model_name='usageposting',
            name='cached_tokens',
            field=models.IntegerField(null=True),
        ),
        migrations.AddField(
            model_name='usageposting',
            name='completion_tokens',
            field=models.IntegerField(null=True),
        ),
        migrations.AddField(
            model_name='usageposting',
            name='prompt_tokens',
            field=models.IntegerField(null=True),
        ),
        migrations.CreateModel(
            name='BillingPeriod',
            fields=[
                ('id', models.UUIDField(default=billing.models.base.new_id, editable=False, primary_key=True, serialize=False)),
                ('month', models.CharField(help_text='2026-11', max_length=7)),
                ('zone', models.CharField(max_length=64)),
                ('currency', models.CharField(max_length=3)),
                ('starts_at', models.DateTimeField()),
                ('ends_at', models.DateTimeField()),
                ('state', models.CharField(choices=[('draft', 'Draft'), ('sealed', 'Sealed'), ('issued', 'Issued'), ('paid', 'Paid'), ('void', 'Void')], default='draft', max_length=10)),
                ('checked_at', models.DateTimeField(help_text='When its books were last compared.', null=True)),
                ('sealed_at', models.DateTimeField(null=True)),
                ('sealed_by', models.CharField(blank=True, max_length=200)),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='billing_periods', to='tenants.tenant')),
            ],
            options={
                'ordering': ['-starts_at', 'tenant'],
            },
        ),
        migrations.CreateModel(
            name='CloseGap',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('kind', models.CharField(max_length=20)),
                ('at', models.DateTimeField(null=True)),
                ('request_id', models.CharField(blank=True, max_length=64)),
                ('detail', models.CharField(max_length=500)),
                ('tokens', models.BigIntegerField(default=0, help_text='Tokens that are not explained.')),
                ('period', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='gaps', to='billing.billingperiod')),
            ],
            options={
                'ordering': ['kind', 'at', 'request_id', 'id'],
            },
        ),
        migrations.CreateModel(
            name='CloseWaiver',
            fields=[
                ('id', models.UUIDField(default=billing.models.base.new_id, editable=False, primary_key=True, serialize=False)),
                ('gaps', models.PositiveIntegerField()),
                ('gaps_sha256', models.CharField(max_length=64)),
                ('reason', models.TextField()),
                ('signed_by', models.CharField(max_length=200)),
                ('signed_at', models.DateTimeField()),
                ('period', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='waivers', to='billing.billingperiod')),
            ],
            options={
                'ordering': ['-signed_at'],
            },
        ),
        migrations.CreateModel(
            name='PeriodHour',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('revision', models.PositiveSmallIntegerField(help_text='1 = the seal; later ones are corrections.')),
                ('hour', models.DateTimeField()),
                ('requests', models.BigIntegerField()),
                ('prompt_tokens', models.BigIntegerField()),
                ('cached_tokens', models.BigIntegerField()),
                ('completion_tokens', models.BigIntegerField()),
                ('cost', models.DecimalField(decimal_places=9, max_digits=38)),
                ('fingerprint', models.BigIntegerField(help_text="XOR of the ids' hashes: the same set, not only the same number.")),
                ('period', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='hours', to='billing.billingperiod')),
            ],
            options={
                'ordering': ['hour'],
            },
        ),
        migrations.CreateModel(
            name='PeriodUsage',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('revision', models.PositiveSmallIntegerField()),
                ('segment_at', models.DateTimeField(help_text='Where the contract that it is rated by began in the period.')),
                ('model', models.CharField(max_length=200)),
                ('service_class', models.CharField(max_length=20)),
                ('meter', models.CharField(choices=[('input', 'Input'), ('cached', 'Cached input'), ('output', 'Output')], max_length=10)),
                ('price_id', models.CharField(help_text='The version of the price book that was chosen at admission.', max_length=100)),
                ('unit_nano', models.BigIntegerField(help_text='Nano-units per token.')),
                ('tokens', models.BigIntegerField()),
                ('period', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='usage', to='billing.billingperiod')),
            ],
            options={
                'verbose_name_plural': 'period usage',
                'ordering': ['segment_at', 'model', 'service_class', 'meter', 'price_id'],
            },
        ),
        migrations.AddConstraint(
            model_name='billingperiod',
            constraint=models.UniqueConstraint(fields=('tenant', 'month'), name='period_once'),
        ),
        migrations.AddConstraint(
            model_name='billingperiod',
            constraint=models.CheckConstraint(condition=models.Q(('ends_at__gt', models.F('starts_at'))), name='period_has_time'),
        ),
        migrations.AddConstraint(
            model_name='billingperiod',
            constraint=django.contrib.postgres.constraints.ExclusionConstraint(expressions=[('tenant', '='), (billing.models.base.Period('starts_at', 'ends_at', django.contrib.postgres.fields.ranges.RangeBoundary()), '&&')], name='period_never_overlaps'),
        ),
        migrations.AddConstraint(
            model_name='closewaiver',
            constraint=models.CheckConstraint(condition=models.Q(('reason', ''), _negated=True), name='waiver_has_a_reason'),
        ),
        migrations.AddConstraint(
            model_name='periodhour',
            constraint=models.UniqueConstraint(fields=('period', 'revision', 'hour'), name='period_hour_once'),
        ),
        migrations.AddConstraint(
            model_name='periodusage',
            constraint=models.UniqueConstraint(fields=('period', 'revision', 'segment_at', 'model', 'service_class', 'meter', 'price_id'), name='period_usage_once'),
        ),
        migrations.RunSQL(TRIGGERS),
        *(migrations.RunSQL(sql, unguard_table(table)) for table, sql in GUARDS.items()),
    ]
