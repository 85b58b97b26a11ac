"""Step 1: HTTP in, OpenAI's shapes out."""
