"""A tenant names its guardrail policy."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("safety", "0001_policies"), ("tenants", "0002_audit_is_append_only")]
    operations = [
        migrations.AddField(
            model_name="tenant",
            name="policy",
            field=models.ForeignKey(
                blank=True,
                help_text="Guardrail policy; its published version is in force.",
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="safety.policy",
            ),
        ),
    ]
