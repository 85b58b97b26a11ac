"""How Weir talks to its stores: Redis and Lua, ClickHouse, objects, and the system's clock and random ids."""
