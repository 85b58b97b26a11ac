"""Step 5, QUEUE: a fair queue in tokens, its leases and its token logs. See README.md for the invariants."""
