"""Migrations of the guardrail policies."""
