"""Finance by the management API: documents for tenants, reports for operators."""
