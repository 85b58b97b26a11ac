"""Commands of the tenants room: create_key, rebuild_limits."""
