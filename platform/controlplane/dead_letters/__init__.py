"""Requests that were set aside because engines died while they ran: read with their evidence, and run once more."""
