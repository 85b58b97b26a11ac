"""Schema of the price book and the ledger."""
