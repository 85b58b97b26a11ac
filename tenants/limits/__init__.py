"""Step 3, LIMITS: one atomic hold over every limit of a key, its project and its tenant. No Django here."""
