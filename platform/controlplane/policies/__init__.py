"""Guardrail policies by the management API: read them, try them on a text."""
