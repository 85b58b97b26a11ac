"""Prices under a name, for the plans that have the list: between a tenant's own price and everybody's."""

import billing.models
import django.contrib.postgres.constraints
import django.contrib.postgres.fields.ranges
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('billing', '0002_append_only_and_balanced'),
        ('tenants', '0005_row_security'),
    ]

    operations = [
        migrations.CreateModel(
            name='PriceList',
            fields=[
                ('id', models.UUIDField(default=billing.models.new_id, editable=False, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=100, unique=True)),
                ('description', models.CharField(blank=True, max_length=500)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
            options={
                'ordering': ['name'],
            },
        ),
        migrations.RemoveConstraint(
            model_name='priceversion',
            name='price_once_for_all',
        ),
        migrations.AlterField(
            model_name='priceversion',
            name='tenant',
            field=models.ForeignKey(blank=True, help_text="For this tenant alone; it stands before its plan's list and before what everybody pays.", null=True, on_delete=django.db.models.deletion.PROTECT, related_name='prices', to='tenants.tenant'),
        ),
        migrations.AddField(
            model_name='priceversion',
            name='price_list',
            field=models.ForeignKey(blank=True, help_text='For the tenants of the plans with this list. Neither tenant nor list = what everybody else pays.', null=True, on_delete=django.db.models.deletion.PROTECT, related_name='prices', to='billing.pricelist'),
        ),
        migrations.AddConstraint(
            model_name='priceversion',
            constraint=models.CheckConstraint(condition=models.Q(('tenant', None), ('price_list', None), _connector='OR'), name='price_has_one_owner', violation_error_message="A price is a tenant's or a list's, not both."),
        ),
        migrations.AddConstraint(
            model_name='priceversion',
            constraint=django.contrib.postgres.constraints.ExclusionConstraint(condition=models.Q(('price_list', None), ('tenant', None)), expressions=[('model', '='), ('meter', '='), ('currency', '='), (billing.models.Period('valid_from', 'valid_to', django.contrib.postgres.fields.ranges.RangeBoundary()), '&&')], name='price_once_for_all', violation_error_message='Another price holds for a part of this time; supersede it instead.'),
        ),
        migrations.AddConstraint(
            model_name='priceversion',
            constraint=django.contrib.postgres.constraints.ExclusionConstraint(condition=models.Q(('price_list__isnull', False)), expressions=[('price_list', '='), ('model', '='), ('meter', '='), ('currency', '='), (billing.models.Period('valid_from', 'valid_to', django.contrib.postgres.fields.ranges.RangeBoundary()), '&&')], name='price_once_per_list', violation_error_message='Another price holds for a part of this time; supersede it instead.'),
        ),
    ]
