"""What constraints cannot say: the ledger only grows, its transactions balance, a price is superseded and never edited."""

from django.db import migrations

APPEND_ONLY = ("billing_ledgeraccount", "billing_ledgertransaction", "billing_ledgerentry", "billing_usageposting")

FUNCTIONS = """
CREATE FUNCTION billing_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'restrict_violation';
END $$;

CREATE FUNCTION billing_check_balance() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    total numeric;
    foreign_entries bigint;
BEGIN
    SELECT sum(entry.amount), count(*) FILTER (WHERE account.currency <> ledger.currency)
    INTO total, foreign_entries
    FROM billing_ledgerentry entry
    JOIN billing_ledgeraccount account ON account.id = entry.account_id
    JOIN billing_ledgertransaction ledger ON ledger.id = entry.transaction_id
    WHERE entry.transaction_id = NEW.transaction_id;
    IF total <> 0 THEN
        RAISE EXCEPTION 'ledger transaction % is out of balance by %', NEW.transaction_id, total
            USING ERRCODE = 'check_violation';
    END IF;
    IF foreign_entries > 0 THEN
        RAISE EXCEPTION 'ledger transaction % has entries in another currency', NEW.transaction_id
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION billing_price_only_ends() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (to_jsonb(NEW) - 'valid_to' - 'approved_by') <> (to_jsonb(OLD) - 'valid_to' - 'approved_by') THEN
        RAISE EXCEPTION 'a price is superseded, never edited' USING ERRCODE = 'restrict_violation';
    END IF;
    IF OLD.valid_to IS NOT NULL AND (NEW.valid_to IS NULL OR NEW.valid_to > OLD.valid_to) THEN
        RAISE EXCEPTION 'the end of a price only moves closer' USING ERRCODE = 'restrict_violation';
    END IF;
    IF OLD.approved_by <> '' AND NEW.approved_by <> OLD.approved_by THEN
        RAISE EXCEPTION 'a price is approved once' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
"""

TRIGGERS = "\n".join(
    f"CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON {table} "
    "FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();"
    for table in APPEND_ONLY
) + """
CREATE CONSTRAINT TRIGGER entries_sum_to_zero AFTER INSERT ON billing_ledgerentry
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION billing_check_balance();
CREATE TRIGGER price_only_ends BEFORE UPDATE ON billing_priceversion
    FOR EACH ROW EXECUTE FUNCTION billing_price_only_ends();
CREATE TRIGGER price_stays BEFORE DELETE ON billing_priceversion
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
"""

REVERSE = "\n".join(f"DROP TRIGGER append_only ON {table};" for table in APPEND_ONLY) + """
DROP TRIGGER entries_sum_to_zero ON billing_ledgerentry;
DROP TRIGGER price_only_ends ON billing_priceversion;
DROP TRIGGER price_stays ON billing_priceversion;
DROP FUNCTION billing_refuse_change();
DROP FUNCTION billing_check_balance();
DROP FUNCTION billing_price_only_ends();
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0001_price_book_and_ledger")]

    operations = [migrations.RunSQL(sql=FUNCTIONS + TRIGGERS, reverse_sql=REVERSE)]
