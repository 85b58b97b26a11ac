"""Prepaid credit: grants and movements are only added, and a grant never gives more than it has."""

import billing.models.base
import django.core.validators
import django.db.models.deletion
from django.db import migrations, models

from stores.row_security import guard_child, guard_table, unguard_table

KEPT = ("billing_creditgrant", "billing_creditmovement")
TRIGGERS = "\n".join(
    f"""CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON {table}
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON {table}
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();"""
    for table in KEPT
) + """
CREATE FUNCTION billing_check_grant() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    granted numeric;
    used numeric;
BEGIN
    SELECT amount INTO granted FROM billing_creditgrant WHERE id = NEW.grant_id FOR UPDATE;
    SELECT coalesce(sum(amount), 0) INTO used FROM billing_creditmovement WHERE grant_id = NEW.grant_id;
    IF used + NEW.amount > granted THEN
        RAISE EXCEPTION 'credit grant % has no % left', NEW.grant_id, NEW.amount USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER within_its_grant BEFORE INSERT ON billing_creditmovement
    FOR EACH ROW EXECUTE FUNCTION billing_check_grant();
"""
GUARDS = {
    "billing_creditgrant": guard_table("billing_creditgrant", verbs="SELECT"),
    "billing_creditalert": guard_table("billing_creditalert", verbs="SELECT"),
    "billing_creditmovement": guard_child(
        "billing_creditmovement", column="grant_id", parent="billing_creditgrant", verbs="SELECT"
    ),
}


class Migration(migrations.Migration):

    dependencies = [
        ('billing', '0005_two_people_and_terms'),
        ('tenants', '0007_audit_is_not_truncated'),
    ]

    operations = [
        migrations.AlterField(
            model_name='ledgeraccount',
            name='kind',
            field=models.CharField(choices=[('receivable', 'Accounts receivable'), ('prepaid_credit', 'Prepaid credit'), ('revenue', 'Revenue'), ('tax', 'Tax'), ('breakage', 'Breakage'), ('cash', 'Cash'), ('promotion', 'Promotion')], max_length=20),
        ),
        migrations.CreateModel(
            name='CreditGrant',
            fields=[
                ('id', models.UUIDField(default=billing.models.base.new_id, editable=False, primary_key=True, serialize=False)),
                ('currency', models.CharField(max_length=3, validators=[django.core.validators.RegexValidator('^[A-Z]{3}$', 'Three capital letters, as in ISO 4217.')])),
                ('amount', models.DecimalField(decimal_places=9, max_digits=20)),
                ('paid', models.BooleanField(default=False, help_text='Bought with money (a top-up); otherwise a gift.')),
                ('granted_at', models.DateTimeField(editable=False)),
                ('expires_at', models.DateTimeField(blank=True, help_text='First moment without it; empty = never.', null=True)),
                ('reason', models.CharField(max_length=500)),
                ('created_by', models.CharField(editable=False, max_length=200)),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='credit_grants', to='tenants.tenant')),
                ('transaction', models.OneToOneField(editable=False, on_delete=django.db.models.deletion.PROTECT, related_name='credit_grant', to='billing.ledgertransaction')),
            ],
            options={
                'ordering': ['-granted_at', '-id'],
            },
        ),
        migrations.CreateModel(
            name='CreditMovement',
            fields=[
                ('id', models.UUIDField(default=billing.models.base.new_id, editable=False, primary_key=True, serialize=False)),
                ('kind', models.CharField(choices=[('burn', 'Paid for an invoice'), ('expire', 'Expired')], max_length=10)),
                ('amount', models.DecimalField(decimal_places=9, max_digits=20)),
                ('moved_at', models.DateTimeField()),
                ('grant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='movements', to='billing.creditgrant')),
                ('transaction', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='credit_movements', to='billing.ledgertransaction')),
            ],
            options={
                'ordering': ['moved_at', 'id'],
            },
        ),
        migrations.CreateModel(
            name='CreditAlert',
            fields=[
                ('id', models.UUIDField(default=billing.models.base.new_id, editable=False, primary_key=True, serialize=False)),
                ('currency', models.CharField(max_length=3, validators=[django.core.validators.RegexValidator('^[A-Z]{3}$', 'Three capital letters, as in ISO 4217.')])),
                ('below', models.DecimalField(decimal_places=9, max_digits=20)),
                ('fired_at', models.DateTimeField(editable=False, null=True)),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='credit_alerts', to='tenants.tenant')),
            ],
            options={
                'ordering': ['tenant', 'currency', '-below'],
                'constraints': [models.UniqueConstraint(fields=('tenant', 'currency', 'below'), name='credit_alert_once'), models.CheckConstraint(condition=models.Q(('below__gt', 0)), name='credit_alert_positive')],
            },
        ),
        migrations.AddIndex(
            model_name='creditgrant',
            index=models.Index(fields=['tenant', 'currency'], name='credit_by_tenant'),
        ),
        migrations.AddConstraint(
            model_name='creditgrant',
            constraint=models.CheckConstraint(condition=models.Q(('amount__gt', 0)), name='credit_positive'),
        ),
        migrations.AddConstraint(
            model_name='creditgrant',
            constraint=models.CheckConstraint(condition=models.Q(('currency__regex', '^[A-Z]{3}$')), name='credit_currency'),
        ),
        migrations.AddConstraint(
            model_name='creditgrant',
            constraint=models.CheckConstraint(condition=models.Q(('expires_at', None), ('expires_at__gt', models.F('granted_at')), _connector='OR'), name='credit_expires_later'),
        ),
        migrations.AddConstraint(
            model_name='creditmovement',
            constraint=models.CheckConstraint(condition=models.Q(('amount__gt', 0)), name='movement_positive'),
        ),
        migrations.AddConstraint(
            model_name='creditmovement',
            constraint=models.UniqueConstraint(fields=('grant', 'transaction'), name='movement_once'),
        ),
        migrations.RunSQL(TRIGGERS),
        *(migrations.RunSQL(sql, unguard_table(table)) for table, sql in GUARDS.items()),
    ]
