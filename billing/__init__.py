"""Steps 8 and 9, METER and BILL: usage records become ClickHouse rows, prices, ledger entries and reports."""
