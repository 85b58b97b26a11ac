"""A plan has a price list. What a tenant sees of plans, their limits, lists and prices is its own plan's, no other's."""

import django.db.models.deletion
from django.db import migrations, models

from stores.row_security import guard_child, share_table, unguard_table, unshare_table

_OWN_PLAN = guard_child("tenants_plan", column="id", parent="tenants_tenant", parent_column="plan_id", verbs="SELECT")
_OWN_LIST = guard_child(
    "billing_pricelist", column="id", parent="tenants_plan", parent_column="price_list_id", verbs="SELECT"
)
_SHARED_PRICES = """
DROP POLICY weir_shared ON billing_priceversion;
CREATE POLICY weir_shared ON billing_priceversion FOR SELECT TO weir_app USING (
    tenant_id IS NULL AND (price_list_id IS NULL OR EXISTS (
        SELECT FROM billing_pricelist AS own WHERE own.id = billing_priceversion.price_list_id))
);
"""
_ALL_SHARED = """
DROP POLICY weir_shared ON billing_priceversion;
CREATE POLICY weir_shared ON billing_priceversion FOR SELECT TO weir_app USING (tenant_id IS NULL);
"""
_PLAN_LIMITS = """
CREATE POLICY weir_shared ON tenants_limitsetting FOR SELECT TO weir_app USING (
    EXISTS (SELECT FROM tenants_plan AS own WHERE own.id = tenants_limitsetting.plan_id)
);
"""


class Migration(migrations.Migration):

    dependencies = [
        ('billing', '0003_price_lists'),
        ('tenants', '0005_row_security'),
    ]

    operations = [
        migrations.AddField(
            model_name='plan',
            name='price_list',
            field=models.ForeignKey(blank=True, help_text='What its tenants pay where they have no price of their own; empty = what everybody pays.', null=True, on_delete=django.db.models.deletion.PROTECT, related_name='plans', to='billing.pricelist'),
        ),
        migrations.RunSQL(
            unshare_table("tenants_plan") + _OWN_PLAN, unguard_table("tenants_plan") + share_table("tenants_plan")
        ),
        migrations.RunSQL(_OWN_LIST, unguard_table("billing_pricelist")),
        migrations.RunSQL(_SHARED_PRICES, _ALL_SHARED),
        migrations.RunSQL(_PLAN_LIMITS, "DROP POLICY weir_shared ON tenants_limitsetting"),
    ]
