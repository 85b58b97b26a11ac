"""Step 2, AUTH: from a bearer key to a TenantContext. No Django here."""
