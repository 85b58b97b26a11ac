"""Step 4, GUARDRAIL: guardrails-ai validators in processes of their own."""


class ValidatorPool:
    """`ValidatorPool(processes=1, deadline_ms=2000, queue_max=64)`; `async with pool:` starts and stops the processes."""
