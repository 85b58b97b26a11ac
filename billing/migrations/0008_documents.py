"""Invoices and notes: numbered without gaps, frozen when issued, their lines summing to the net amount."""

import billing.models.base
import django.core.validators
import django.db.models.deletion
import django.db.models.expressions
from django.db import migrations, models

from stores.row_security import guard_child, guard_table, unguard_table

KEPT = ("billing_invoiceline", "billing_payment")
TRIGGERS = "\n".join(
    f"""CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON {table}
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON {table}
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();"""
    for table in KEPT
) + "\n" + "\n".join(
    f"""CREATE TRIGGER stays BEFORE DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON {table}
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();"""
    for table in ("billing_invoice", "billing_invoiceseries", "billing_adjustment")
) + """
CREATE FUNCTION billing_document_is_frozen() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    may_change text[] := ARRAY['state', 'paid', 'paid_at', 'files'];
BEGIN
    IF (to_jsonb(NEW) - may_change) <> (to_jsonb(OLD) - may_change) THEN
        RAISE EXCEPTION 'an issued document is frozen' USING ERRCODE = 'restrict_violation';
    END IF;
    IF NEW.state <> OLD.state AND (OLD.state, NEW.state) NOT IN (('issued', 'paid'), ('issued', 'void')) THEN
        RAISE EXCEPTION 'a document does not go from % to %', OLD.state, NEW.state
            USING ERRCODE = 'restrict_violation';
    END IF;
    IF OLD.files <> '{}'::jsonb AND NEW.files <> OLD.files THEN
        RAISE EXCEPTION 'the files of a document are stored once' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER document_is_frozen BEFORE UPDATE ON billing_invoice
    FOR EACH ROW EXECUTE FUNCTION billing_document_is_frozen();

CREATE FUNCTION billing_lines_sum() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    wanted numeric;
    found numeric;
    document uuid := CASE WHEN TG_TABLE_NAME = 'billing_invoice' THEN (to_jsonb(NEW) ->> 'id')::uuid
        ELSE (to_jsonb(NEW) ->> 'invoice_id')::uuid END;
BEGIN
    SELECT net INTO wanted FROM billing_invoice WHERE id = document;
    SELECT coalesce(sum(amount), 0) INTO found FROM billing_invoiceline WHERE invoice_id = document;
    IF wanted <> found THEN
        RAISE EXCEPTION 'the lines of document % sum to %, not to %', document, found, wanted
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER lines_sum_to_net AFTER INSERT ON billing_invoice
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION billing_lines_sum();
CREATE CONSTRAINT TRIGGER lines_sum_to_net AFTER INSERT ON billing_invoiceline
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION billing_lines_sum();

CREATE FUNCTION billing_series_counts() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.last <> OLD.last + 1 OR (NEW.series, NEW.year) <> (OLD.series, OLD.year) THEN
        RAISE EXCEPTION 'numbers are given one after the other' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER series_counts BEFORE UPDATE ON billing_invoiceseries
    FOR EACH ROW EXECUTE FUNCTION billing_series_counts();

CREATE FUNCTION billing_adjustment_is_approved_once() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (to_jsonb(NEW) - 'approved_by') <> (to_jsonb(OLD) - 'approved_by') OR OLD.approved_by <> '' THEN
        RAISE EXCEPTION 'an adjustment is approved once and never edited' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER approved_once BEFORE UPDATE ON billing_adjustment
    FOR EACH ROW EXECUTE FUNCTION billing_adjustment_is_approved_once();
"""
GUARDS = {
    "billing_invoice": guard_table("billing_invoice", verbs="SELECT"),
    "billing_invoiceline": guard_child(
        "billing_invoiceline", column="invoice_id", parent="billing_invoice", verbs="SELECT"
    ),
}


class Migration(migrations.Migration):

    dependencies = [
        ('billing', '0007_periods'),
        ('tenants', '0007_audit_is_not_truncated'),
    ]

    operations = [
        migrations.CreateModel(
            name='Invoice',
            fields=[
                ('id', models.UUIDField(default=billing.models.base.new_id, editable=False, primary_key=True, serialize=False)),
                ('sequence', models.PositiveSmallIntegerField(help_text='1 = the invoice of the period; then its notes.')),
                ('kind', models.CharField(choices=[('invoice', 'Invoice'), ('credit_note', 'Credit note'), ('debit_note', 'Debit note')], max_length=20)),
                ('series', models.CharField(max_length=10)),
                ('year', models.PositiveSmallIntegerField()),
                ('serial', models.PositiveIntegerField()),
                ('number', models.CharField(max_length=40, unique=True)),
                ('usage_revision', models.PositiveSmallIntegerField()),
                ('currency', models.CharField(max_length=3)),
                ('net', models.DecimalField(decimal_places=9, max_digits=20)),
                ('tax', models.DecimalField(decimal_places=9, max_digits=20)),
                ('total', models.DecimalField(decimal_places=9, max_digits=20)),
                ('credit_used', models.DecimalField(decimal_places=9, max_digits=20)),
                ('tax_category', models.CharField(max_length=2)),
                ('tax_rate_ppm', models.PositiveIntegerField()),
                ('tax_note', models.CharField(blank=True, max_length=200)),
                ('seller', models.JSONField()),
                ('buyer', models.JSONField()),
                ('issued_at', models.DateTimeField()),
                ('issued_by', models.CharField(max_length=200)),
                ('due_at', models.DateTimeField()),
                ('state', models.CharField(choices=[('issued', 'Issued'), ('paid', 'Paid'), ('void', 'Void')], default='issued', max_length=10)),
                ('paid', models.DecimalField(decimal_places=9, default=0, max_digits=20)),
                ('paid_at', models.DateTimeField(null=True)),
                ('files', models.JSONField(default=dict, help_text='Name -> {key, sha256} in the object store.')),
                ('period', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='invoices', to='billing.billingperiod')),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='invoices', to='tenants.tenant')),
            ],
            options={
                'ordering': ['-year', '-serial'],
            },
        ),
        migrations.CreateModel(
            name='InvoiceLine',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('position', models.PositiveSmallIntegerField()),
                ('key', models.CharField(max_length=500)),
                ('kind', models.CharField(max_length=20)),
                ('text', models.CharField(max_length=500)),
                ('tokens', models.BigIntegerField(null=True)),
                ('unit_nano', models.BigIntegerField(null=True)),
                ('exact', models.DecimalField(decimal_places=9, help_text='Before rounding.', max_digits=38)),
                ('amount', models.DecimalField(decimal_places=9, max_digits=20)),
                ('invoice', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='lines', to='billing.invoice')),
            ],
            options={
                'ordering': ['position'],
            },
        ),
        migrations.CreateModel(
            name='InvoiceSeries',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('series', models.CharField(max_length=10)),
                ('year', models.PositiveSmallIntegerField()),
                ('last', models.PositiveIntegerField(default=0)),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('series', 'year'), name='invoice_series_once')],
            },
        ),
        migrations.CreateModel(
            name='Payment',
            fields=[
                ('id', models.UUIDField(default=billing.models.base.new_id, editable=False, primary_key=True, serialize=False)),
                ('key', models.CharField(max_length=150, unique=True)),
                ('amount', models.DecimalField(decimal_places=9, max_digits=20)),
                ('paid_at', models.DateTimeField()),
                ('recorded_by', models.CharField(max_length=200)),
                ('invoice', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='payments', to='billing.invoice')),
                ('transaction', models.OneToOneField(on_delete=django.db.models.deletion.PROTECT, related_name='payment', to='billing.ledgertransaction')),
            ],
            options={
                'ordering': ['paid_at', 'id'],
            },
        ),
        migrations.CreateModel(
            name='Adjustment',
            fields=[
                ('id', models.UUIDField(default=billing.models.base.new_id, editable=False, primary_key=True, serialize=False)),
                ('amount', models.DecimalField(decimal_places=9, help_text="Before tax; negative = in the customer's favour.", max_digits=20)),
                ('text', models.CharField(help_text='As the document prints it.', max_length=200, validators=[django.core.validators.MinLengthValidator(3)])),
                ('created_by', models.CharField(editable=False, max_length=200)),
                ('approved_by', models.CharField(blank=True, editable=False, max_length=200)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('period', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='adjustments', to='billing.billingperiod')),
            ],
            options={
                'ordering': ['created_at', 'id'],
                'constraints': [models.CheckConstraint(condition=models.Q(('approved_by', ''), models.Q(('approved_by', models.F('created_by')), _negated=True), _connector='OR'), name='adjustment_two_people'), models.CheckConstraint(condition=models.Q(('amount', 0), _negated=True), name='adjustment_is_something')],
            },
        ),
        migrations.AddConstraint(
            model_name='invoice',
            constraint=models.UniqueConstraint(fields=('period', 'sequence'), name='invoice_once'),
        ),
        migrations.AddConstraint(
            model_name='invoice',
            constraint=models.UniqueConstraint(fields=('series', 'year', 'serial'), name='invoice_number_once'),
        ),
        migrations.AddConstraint(
            model_name='invoice',
            constraint=models.CheckConstraint(condition=models.Q(('credit_used__gte', 0), ('total', django.db.models.expressions.CombinedExpression(models.F('net'), '+', models.F('tax')))), name='invoice_adds_up'),
        ),
        migrations.AddConstraint(
            model_name='invoiceline',
            constraint=models.UniqueConstraint(fields=('invoice', 'position'), name='invoice_line_once'),
        ),
        migrations.AddConstraint(
            model_name='invoiceline',
            constraint=models.UniqueConstraint(fields=('invoice', 'key'), name='invoice_line_key_once'),
        ),
        migrations.AddConstraint(
            model_name='payment',
            constraint=models.CheckConstraint(condition=models.Q(('amount__gt', 0)), name='payment_positive'),
        ),
        migrations.RunSQL(TRIGGERS),
        *(migrations.RunSQL(sql, unguard_table(table)) for table, sql in GUARDS.items()),
    ]
