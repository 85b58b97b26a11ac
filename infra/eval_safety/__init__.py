"""How well each kind of guardrail rule finds what it is for, on labelled texts from a seed. `manage.py eval_safety`."""
