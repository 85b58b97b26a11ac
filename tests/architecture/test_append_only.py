"""What only grows is emptied by no statement: every table that refuses DELETE refuses TRUNCATE, to its owner too."""

import pytest
from django.db import IntegrityError, connection, transaction

_KINDS = """
SELECT relname, bool_or(tgtype & 8 > 0), bool_or(tgtype & 32 > 0 AND tgtype & 1 = 0)
FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
WHERE NOT tgisinternal AND tgenabled = 'O' AND tgtype & 2 > 0 GROUP BY relname
"""


def kept() -> list[str]:
    """Tables with a trigger before DELETE."""
    with connection.cursor() as cursor:
        cursor.execute(_KINDS)
        return sorted(name for name, deletes, _ in cursor.fetchall() if deletes)


@pytest.mark.django_db
class TestAppendOnly:
    def test_is_what_it_was(self) -> None:
        assert kept() == [
            "billing_adjustment",
            "billing_billingperiod",
            "billing_closewaiver",
            "billing_contractterms",
            "billing_creditgrant",
            "billing_creditmovement",
            "billing_dunningstep",
            "billing_invoice",
            "billing_invoiceline",
            "billing_invoiceseries",
            "billing_ledgeraccount",
            "billing_ledgerentry",
            "billing_ledgertransaction",
            "billing_payment",
            "billing_periodhour",
            "billing_periodseal",
            "billing_periodusage",
            "billing_priceversion",
            "billing_receiptkey",
            "billing_taxrate",
            "billing_usageposting",
            "controlplane_engineconfig",
            "controlplane_engineconfigevent",
            "safety_policyversion",
            "tenants_auditentry",
        ]

    def test_refuses_truncate_to_the_owner_and_by_cascade(self) -> None:
        for table in kept():
            for statement in (f"TRUNCATE {table} CASCADE", f"TRUNCATE ONLY {table} RESTART IDENTITY CASCADE"):
                with connection.cursor() as cursor:
                    cursor.execute("SELECT tableowner = current_user FROM pg_tables WHERE tablename = %s", [table])
                    assert cursor.fetchone() == (True,)
                    with pytest.raises(IntegrityError, match=r"append-only|never change"), transaction.atomic():
                        cursor.execute(statement)

    def test_refuses_it_where_another_table_is_emptied(self) -> None:
        with (
            pytest.raises(IntegrityError, match="append-only"),
            transaction.atomic(),
            connection.cursor() as cursor,
        ):
            cursor.execute("TRUNCATE tenants_tenant CASCADE")
