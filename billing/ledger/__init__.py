"""Double entry in PostgreSQL: what usage owes, posted once per request."""
