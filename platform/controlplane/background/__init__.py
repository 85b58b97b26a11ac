"""Background requests: kept in PostgreSQL, their answers brought there, and what Redis lost brought back."""
