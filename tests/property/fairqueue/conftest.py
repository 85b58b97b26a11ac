"""The cluster that the functional suite starts, for the state machine."""

from tests.functional.fairqueue.conftest import cluster

__all__ = ["cluster"]
