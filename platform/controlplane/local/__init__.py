"""Local mode: what `make up` adds: a supervisor and the stores it starts. Production imports none of it."""
