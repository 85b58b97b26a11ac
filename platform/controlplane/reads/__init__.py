"""What a gateway reads from the slower stores: each port of `gateway.services` that is more than one call."""
