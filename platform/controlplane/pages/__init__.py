"""Pages of the console that look into the running platform: limits as they stand, and why a request was refused."""
