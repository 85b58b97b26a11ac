"""TRUNCATE fires no row's trigger: the ledger and the price book refuse it by the statement, their owner's too."""

from django.db import migrations

TABLES = (
    "billing_ledgeraccount",
    "billing_ledgertransaction",
    "billing_ledgerentry",
    "billing_usageposting",
    "billing_priceversion",
)


class Migration(migrations.Migration):
    dependencies = [("billing", "0003_price_lists")]
    operations = [
        migrations.RunSQL(
            f"CREATE TRIGGER never_truncated BEFORE TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();",
            f"DROP TRIGGER never_truncated ON {table};",
        )
        for table in TABLES
    ]
