"""Rules that are not pure code: guardrails-ai validators in a process pool."""
