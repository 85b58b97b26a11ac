"""The console on real PostgreSQL and Valkey, as the console's own tests have it."""

from tests.functional.controlplane.conftest import operator, wired

__all__ = ["operator", "wired"]
