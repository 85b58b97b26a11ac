"""Local mode: what `make up` adds to the platform: a supervisor and the stores it starts. Nothing imports it in production."""
