"""Schema, migrations and queries of the usage tables in ClickHouse. No Django."""
