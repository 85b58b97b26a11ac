"""Webhooks: a tenant's domain events, signed and sent to its own HTTPS endpoints."""
