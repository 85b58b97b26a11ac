"""Two people for every price; classes; terms of contracts; tax. What was in force before the rule stays in force."""

import billing.models.base
import billing.models.prices
import django.contrib.postgres.constraints
import django.contrib.postgres.fields.ranges
import django.core.validators
import django.db.models.deletion
from django.db import migrations, models

from stores.row_security import guard_table, unguard_table

# Under the old rule a price held without a second person, and requests were charged by it.
APPROVE_WHAT_HELD = "UPDATE billing_priceversion SET approved_by = 'system:before-two-people' WHERE approved_by = '';"

VERSIONS = ("billing_contractterms", "billing_taxrate")

ONLY_ENDS = """
CREATE FUNCTION billing_version_only_ends() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    may_change text[] := ARRAY['valid_from', 'valid_to', 'approved_by', 'withdrawn_by'];
BEGIN
    IF (to_jsonb(NEW) - may_change) <> (to_jsonb(OLD) - may_change) THEN
        RAISE EXCEPTION 'a price is superseded, never edited' USING ERRCODE = 'restrict_violation';
    END IF;
    IF OLD.withdrawn_by <> '' THEN
        RAISE EXCEPTION 'a withdrawn proposal stays as it is' USING ERRCODE = 'restrict_violation';
    END IF;
    IF OLD.approved_by <> '' AND (NEW.approved_by <> OLD.approved_by OR NEW.valid_from <> OLD.valid_from) THEN
        RAISE EXCEPTION 'a price is approved once, and superseded, never edited' USING ERRCODE = 'restrict_violation';
    END IF;
    IF NEW.valid_from < OLD.valid_from OR (OLD.approved_by = NEW.approved_by AND NEW.valid_from <> OLD.valid_from) THEN
        RAISE EXCEPTION 'a price is superseded, never edited: it only begins later, when it is approved'
            USING ERRCODE = 'restrict_violation';
    END IF;
    IF OLD.valid_to IS NOT NULL AND (NEW.valid_to IS NULL OR NEW.valid_to > OLD.valid_to) THEN
        RAISE EXCEPTION 'the end of a price only moves closer' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
DROP TRIGGER price_only_ends ON billing_priceversion;
DROP FUNCTION billing_price_only_ends();
CREATE TRIGGER price_only_ends BEFORE UPDATE ON billing_priceversion
    FOR EACH ROW EXECUTE FUNCTION billing_version_only_ends();
""" + "\n".join(
    f"""CREATE TRIGGER version_only_ends BEFORE UPDATE ON {table}
    FOR EACH ROW EXECUTE FUNCTION billing_version_only_ends();
CREATE TRIGGER version_stays BEFORE DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER never_truncated BEFORE TRUNCATE ON {table}
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();"""
    for table in VERSIONS
)


class Migration(migrations.Migration):

    dependencies = [
        ('billing', '0004_ledger_is_not_truncated'),
        ('tenants', '0007_audit_is_not_truncated'),
    ]

    operations = [
        migrations.RunSQL(APPROVE_WHAT_HELD, migrations.RunSQL.noop),
        migrations.CreateModel(
            name='BillingProfile',
            fields=[
                ('legal_name', models.CharField(max_length=200)),
                ('street', models.CharField(max_length=200)),
                ('postal_code', models.CharField(max_length=20)),
                ('city', models.CharField(max_length=100)),
                ('country', models.CharField(max_length=2, validators=[django.core.validators.RegexValidator('^[A-Z]{2}$', 'Two capital letters, as in ISO 3166.')])),
                ('tax_id', models.CharField(blank=True, help_text="VAT number with its country's letters.", max_length=40)),
                ('email', models.EmailField(blank=True, max_length=254)),
                ('tenant', models.OneToOneField(on_delete=django.db.models.deletion.PROTECT, primary_key=True, related_name='billing_profile', serialize=False, to='tenants.tenant')),
            ],
            options={
                'ordering': ['legal_name'],
            },
        ),
        migrations.CreateModel(
            name='ContractTerms',
            fields=[
                ('id', models.UUIDField(default=billing.models.base.new_id, editable=False, primary_key=True, serialize=False)),
                ('valid_from', models.DateTimeField()),
                ('valid_to', models.DateTimeField(blank=True, help_text='First moment without it; empty = open.', null=True)),
                ('created_by', models.CharField(editable=False, max_length=200)),
                ('approved_by', models.CharField(blank=True, editable=False, max_length=200)),
                ('withdrawn_by', models.CharField(blank=True, default='', editable=False, max_length=200)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('currency', models.CharField(max_length=3, validators=[django.core.validators.RegexValidator('^[A-Z]{3}$', 'Three capital letters, as in ISO 4217.')])),
                ('tiers', models.JSONField(blank=True, default=list, help_text='[{"model": "" (every model), "meter": "output", "above_tokens": 1000000, "discount_ppm": 100000}]: of the tokens of a period above that many, so many millionths of the price are taken off.', validators=[billing.models.prices.check_tiers])),
                ('discount_ppm', models.PositiveIntegerField(default=0, help_text='Taken off all usage after tiers, in millionths: 100000 = 10 %.', validators=[django.core.validators.MinValueValidator(0), django.core.validators.MaxValueValidator(1000000)])),
                ('commitment', models.DecimalField(decimal_places=9, default=0, help_text='Usage of a period that the fee below covers.', max_digits=20)),
                ('commitment_fee', models.DecimalField(decimal_places=9, default=0, help_text='Charged each period, used or not.', max_digits=20)),
                ('minimum', models.DecimalField(decimal_places=9, default=0, help_text='The least that a period costs before tax.', max_digits=20)),
                ('payment_days', models.PositiveSmallIntegerField(default=30)),
            ],
            options={
                'verbose_name': 'contract terms',
                'verbose_name_plural': 'contract terms',
                'ordering': ['tenant', '-valid_from'],
            },
        ),
        migrations.CreateModel(
            name='Issuer',
            fields=[
                ('legal_name', models.CharField(max_length=200)),
                ('street', models.CharField(max_length=200)),
                ('postal_code', models.CharField(max_length=20)),
                ('city', models.CharField(max_length=100)),
                ('country', models.CharField(max_length=2, validators=[django.core.validators.RegexValidator('^[A-Z]{2}$', 'Two capital letters, as in ISO 3166.')])),
                ('tax_id', models.CharField(blank=True, help_text="VAT number with its country's letters.", max_length=40)),
                ('email', models.EmailField(blank=True, max_length=254)),
                ('id', models.UUIDField(default=billing.models.base.new_id, editable=False, primary_key=True, serialize=False)),
                ('only', models.BooleanField(default=True, editable=False)),
                ('series', models.CharField(default='WEIR', help_text='Numbers read SERIES-YEAR-NUMBER, without gaps.', max_length=10, validators=[django.core.validators.RegexValidator('^[A-Z0-9]{1,10}$', 'Capital letters and digits.')])),
                ('bank_details', models.CharField(blank=True, help_text='Printed under the amount due.', max_length=200)),
            ],
            options={
                'verbose_name_plural': 'issuer',
            },
        ),
        migrations.CreateModel(
            name='TaxRate',
            fields=[
                ('id', models.UUIDField(default=billing.models.base.new_id, editable=False, primary_key=True, serialize=False)),
                ('valid_from', models.DateTimeField()),
                ('valid_to', models.DateTimeField(blank=True, help_text='First moment without it; empty = open.', null=True)),
                ('created_by', models.CharField(editable=False, max_length=200)),
                ('approved_by', models.CharField(blank=True, editable=False, max_length=200)),
                ('withdrawn_by', models.CharField(blank=True, default='', editable=False, max_length=200)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('country', models.CharField(max_length=2, validators=[django.core.validators.RegexValidator('^[A-Z]{2}$', 'Two capital letters, as in ISO 3166.')])),
                ('rate_ppm', models.PositiveIntegerField(help_text='In millionths: 190000 = 19 %.', validators=[django.core.validators.MaxValueValidator(1000000)])),
            ],
            options={
                'ordering': ['country', '-valid_from'],
            },
        ),
        migrations.RemoveConstraint(
            model_name='priceversion',
            name='price_once_per_tenant',
        ),
        migrations.RemoveConstraint(
            model_name='priceversion',
            name='price_once_for_all',
        ),
        migrations.RemoveConstraint(
            model_name='priceversion',
            name='price_once_per_list',
        ),
        migrations.AddField(
            model_name='priceversion',
            name='service_class',
            field=models.CharField(blank=True, choices=[('', 'Every class'), ('interactive', 'Interactive'), ('batch', 'Batch')], default='', help_text="Of one owner's prices, one for the request's own class stands before one for every class.", max_length=20),
        ),
        migrations.AddField(
            model_name='priceversion',
            name='withdrawn_by',
            field=models.CharField(blank=True, default='', editable=False, max_length=200),
        ),
        migrations.AddConstraint(
            model_name='priceversion',
            constraint=models.CheckConstraint(condition=models.Q(('service_class__in', ['', 'interactive', 'batch'])), name='price_class'),
        ),
        migrations.AddConstraint(
            model_name='priceversion',
            constraint=models.CheckConstraint(condition=models.Q(('approved_by', ''), ('withdrawn_by', ''), _connector='OR'), name='price_approved_or_withdrawn'),
        ),
        migrations.AddConstraint(
            model_name='priceversion',
            constraint=django.contrib.postgres.constraints.ExclusionConstraint(condition=models.Q(models.Q(('approved_by', ''), _negated=True), ('price_list', None), ('tenant', None)), expressions=[('model', '='), ('service_class', '='), ('meter', '='), ('currency', '='), (billing.models.base.Period('valid_from', 'valid_to', django.contrib.postgres.fields.ranges.RangeBoundary()), '&&')], name='price_once_for_all', violation_error_message='Another version holds for a part of this time; supersede it instead.'),
        ),
        migrations.AddConstraint(
            model_name='priceversion',
            constraint=django.contrib.postgres.constraints.ExclusionConstraint(condition=models.Q(models.Q(('approved_by', ''), _negated=True), ('tenant__isnull', False)), expressions=[('tenant', '='), ('model', '='), ('service_class', '='), ('meter', '='), ('currency', '='), (billing.models.base.Period('valid_from', 'valid_to', django.contrib.postgres.fields.ranges.RangeBoundary()), '&&')], name='price_once_per_tenant', violation_error_message='Another version holds for a part of this time; supersede it instead.'),
        ),
        migrations.AddConstraint(
            model_name='priceversion',
            constraint=django.contrib.postgres.constraints.ExclusionConstraint(condition=models.Q(models.Q(('approved_by', ''), _negated=True), ('price_list__isnull', False)), expressions=[('price_list', '='), ('model', '='), ('service_class', '='), ('meter', '='), ('currency', '='), (billing.models.base.Period('valid_from', 'valid_to', django.contrib.postgres.fields.ranges.RangeBoundary()), '&&')], name='price_once_per_list', violation_error_message='Another version holds for a part of this time; supersede it instead.'),
        ),
        migrations.AddField(
            model_name='contractterms',
            name='tenant',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='terms', to='tenants.tenant'),
        ),
        migrations.AddConstraint(
            model_name='issuer',
            constraint=models.UniqueConstraint(fields=('only',), name='issuer_once'),
        ),
        migrations.AddConstraint(
            model_name='issuer',
            constraint=models.CheckConstraint(condition=models.Q(('only', True)), name='issuer_only'),
        ),
        migrations.AddConstraint(
            model_name='taxrate',
            constraint=models.CheckConstraint(condition=models.Q(('rate_ppm__lte', 1000000)), name='tax_in_range'),
        ),
        migrations.AddConstraint(
            model_name='taxrate',
            constraint=models.CheckConstraint(condition=models.Q(('country__regex', '^[A-Z]{2}$')), name='tax_country'),
        ),
        migrations.AddConstraint(
            model_name='taxrate',
            constraint=models.CheckConstraint(condition=models.Q(('valid_to', None), ('valid_to__gte', models.F('valid_from')), _connector='OR'), name='tax_period'),
        ),
        migrations.AddConstraint(
            model_name='taxrate',
            constraint=models.CheckConstraint(condition=models.Q(('approved_by', ''), models.Q(('approved_by', models.F('created_by')), _negated=True), _connector='OR'), name='tax_two_people'),
        ),
        migrations.AddConstraint(
            model_name='taxrate',
            constraint=models.CheckConstraint(condition=models.Q(('approved_by', ''), ('withdrawn_by', ''), _connector='OR'), name='tax_approved_or_withdrawn'),
        ),
        migrations.AddConstraint(
            model_name='taxrate',
            constraint=django.contrib.postgres.constraints.ExclusionConstraint(condition=models.Q(('approved_by', ''), _negated=True), expressions=[('country', '='), (billing.models.base.Period('valid_from', 'valid_to', django.contrib.postgres.fields.ranges.RangeBoundary()), '&&')], name='tax_once', violation_error_message='Another version holds for a part of this time; supersede it instead.'),
        ),
        migrations.AddConstraint(
            model_name='contractterms',
            constraint=models.CheckConstraint(condition=models.Q(('currency__regex', '^[A-Z]{3}$')), name='terms_currency'),
        ),
        migrations.AddConstraint(
            model_name='contractterms',
            constraint=models.CheckConstraint(condition=models.Q(('commitment__gte', 0), ('commitment_fee__gte', 0), ('discount_ppm__lte', 1000000), ('minimum__gte', 0)), name='terms_in_range'),
        ),
        migrations.AddConstraint(
            model_name='contractterms',
            constraint=models.CheckConstraint(condition=models.Q(('valid_to', None), ('valid_to__gte', models.F('valid_from')), _connector='OR'), name='terms_period'),
        ),
        migrations.AddConstraint(
            model_name='contractterms',
            constraint=models.CheckConstraint(condition=models.Q(('approved_by', ''), models.Q(('approved_by', models.F('created_by')), _negated=True), _connector='OR'), name='terms_two_people'),
        ),
        migrations.AddConstraint(
            model_name='contractterms',
            constraint=models.CheckConstraint(condition=models.Q(('approved_by', ''), ('withdrawn_by', ''), _connector='OR'), name='terms_approved_or_withdrawn'),
        ),
        migrations.AddConstraint(
            model_name='contractterms',
            constraint=django.contrib.postgres.constraints.ExclusionConstraint(condition=models.Q(('approved_by', ''), _negated=True), expressions=[('tenant', '='), ('currency', '='), (billing.models.base.Period('valid_from', 'valid_to', django.contrib.postgres.fields.ranges.RangeBoundary()), '&&')], name='terms_once', violation_error_message='Another version holds for a part of this time; supersede it instead.'),
        ),
        migrations.RunSQL(ONLY_ENDS),
        *(
            migrations.RunSQL(guard_table(table, verbs="SELECT"), unguard_table(table))
            for table in ("billing_contractterms", "billing_billingprofile")
        ),
    ]
