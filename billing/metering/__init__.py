"""Step 8, METER: usage streams into ClickHouse, exactly once as far as any reader can see."""
