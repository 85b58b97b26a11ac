"""Step 4, GUARDRAIL: policies, pure rules, the output window; the Django app of the same name keeps the policies."""
