"""The price book, the ledger and what it has taken from the usage streams."""

import billing.models
import django.contrib.postgres.constraints
import django.contrib.postgres.fields.ranges
import django.core.validators
import django.db.models.deletion
from decimal import Decimal
from django.contrib.postgres.operations import BtreeGistExtension
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('tenants', '0001_initial'),
    ]

    operations = [
        BtreeGistExtension(),
        migrations.CreateModel(
            name='LedgerTransaction',
            fields=[
                ('id', models.UUIDField(default=billing.models.new_id, editable=False, primary_key=True, serialize=False)),
                ('idempotency_key', models.CharField(max_length=200, unique=True)),
                ('currency', models.CharField(max_length=3)),
                ('description', models.CharField(max_length=500)),
                ('posted_at', models.DateTimeField()),
            ],
            options={
                'ordering': ['-posted_at', '-id'],
            },
        ),
        migrations.CreateModel(
            name='LedgerAccount',
            fields=[
                ('id', models.UUIDField(default=billing.models.new_id, editable=False, primary_key=True, serialize=False)),
                ('kind', models.CharField(choices=[('receivable', 'Accounts receivable'), ('prepaid_credit', 'Prepaid credit'), ('revenue', 'Revenue'), ('tax', 'Tax'), ('breakage', 'Breakage')], max_length=20)),
                ('currency', models.CharField(max_length=3)),
                ('tenant', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='ledger_accounts', to='tenants.tenant')),
            ],
            options={
                'ordering': ['kind', 'currency', 'id'],
            },
        ),
        migrations.CreateModel(
            name='LedgerEntry',
            fields=[
                ('id', models.UUIDField(default=billing.models.new_id, editable=False, primary_key=True, serialize=False)),
                ('amount', models.DecimalField(decimal_places=9, max_digits=38)),
                ('account', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='entries', to='billing.ledgeraccount')),
                ('transaction', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='entries', to='billing.ledgertransaction')),
            ],
            options={
                'verbose_name_plural': 'ledger entries',
                'ordering': ['id'],
            },
        ),
        migrations.CreateModel(
            name='PriceVersion',
            fields=[
                ('id', models.UUIDField(default=billing.models.new_id, editable=False, primary_key=True, serialize=False)),
                ('model', models.CharField(help_text='Public model id, as in GET /v1/models.', max_length=200)),
                ('meter', models.CharField(choices=[('input', 'Input'), ('cached', 'Cached input'), ('output', 'Output')], max_length=10)),
                ('per_million', models.DecimalField(decimal_places=3, help_text='Currency units per million tokens, in steps of 0.001.', max_digits=10, validators=[django.core.validators.MinValueValidator(0)])),
                ('currency', models.CharField(default='USD', max_length=3, validators=[django.core.validators.RegexValidator('^[A-Z]{3}$', 'Three capital letters, as in ISO 4217.')])),
                ('valid_from', models.DateTimeField()),
                ('valid_to', models.DateTimeField(blank=True, help_text='First moment without it; empty = open.', null=True)),
                ('created_by', models.CharField(editable=False, max_length=200)),
                ('approved_by', models.CharField(blank=True, editable=False, max_length=200)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('tenant', models.ForeignKey(blank=True, help_text='Empty = every tenant without a price of its own.', null=True, on_delete=django.db.models.deletion.PROTECT, related_name='prices', to='tenants.tenant')),
            ],
            options={
                'verbose_name': 'price',
                'ordering': ['model', 'meter', '-valid_from'],
            },
        ),
        migrations.CreateModel(
            name='UsagePosting',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('request_id', models.UUIDField()),
                ('revision', models.PositiveSmallIntegerField()),
                ('tenant_id', models.UUIDField()),
                ('currency', models.CharField(max_length=3)),
                ('amount', models.DecimalField(decimal_places=9, max_digits=38)),
                ('billed_at', models.DateTimeField()),
                ('transaction', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='usage', to='billing.ledgertransaction')),
            ],
            options={
                'ordering': ['id'],
            },
        ),
        migrations.AddConstraint(
            model_name='ledgeraccount',
            constraint=models.UniqueConstraint(fields=('tenant', 'kind', 'currency'), name='ledger_account_once', nulls_distinct=False),
        ),
        migrations.AddIndex(
            model_name='ledgerentry',
            index=models.Index(fields=['account', 'id'], name='ledger_entry_by_account'),
        ),
        migrations.AddConstraint(
            model_name='priceversion',
            constraint=models.CheckConstraint(condition=models.Q(('per_million__gte', 0), ('per_million__lte', Decimal('1000000'))), name='price_in_range'),
        ),
        migrations.AddConstraint(
            model_name='priceversion',
            constraint=models.CheckConstraint(condition=models.Q(('currency__regex', '^[A-Z]{3}$')), name='price_currency'),
        ),
        migrations.AddConstraint(
            model_name='priceversion',
            constraint=models.CheckConstraint(condition=models.Q(('valid_to', None), ('valid_to__gte', models.F('valid_from')), _connector='OR'), name='price_period'),
        ),
        migrations.AddConstraint(
            model_name='priceversion',
            constraint=models.CheckConstraint(condition=models.Q(('approved_by', ''), models.Q(('approved_by', models.F('created_by')), _negated=True), _connector='OR'), name='price_two_people'),
        ),
        migrations.AddConstraint(
            model_name='priceversion',
            constraint=django.contrib.postgres.constraints.ExclusionConstraint(condition=models.Q(('tenant', None)), expressions=[('model', '='), ('meter', '='), ('currency', '='), (billing.models.Period('valid_from', 'valid_to', django.contrib.postgres.fields.ranges.RangeBoundary()), '&&')], name='price_once_for_all', violation_error_message='Another price holds for a part of this time; supersede it instead.'),
        ),
        migrations.AddConstraint(
            model_name='priceversion',
            constraint=django.contrib.postgres.constraints.ExclusionConstraint(condition=models.Q(('tenant__isnull', False)), expressions=[('tenant', '='), ('model', '='), ('meter', '='), ('currency', '='), (billing.models.Period('valid_from', 'valid_to', django.contrib.postgres.fields.ranges.RangeBoundary()), '&&')], name='price_once_per_tenant', violation_error_message='Another price holds for a part of this time; supersede it instead.'),
        ),
        migrations.AddIndex(
            model_name='usageposting',
            index=models.Index(fields=['tenant_id', 'billed_at'], name='usage_posting_by_period'),
        ),
        migrations.AddConstraint(
            model_name='usageposting',
            constraint=models.UniqueConstraint(fields=('request_id', 'revision'), name='usage_posted_once'),
        ),
    ]
