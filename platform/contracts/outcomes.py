"""How a request ended: a small enumeration fit to be a metric label and a billing status."""

from enum import StrEnum


class Outcome(StrEnum):
    """Each admitted request ends in exactly one of these."""

    OK = "ok"
    CANCELLED = "cancelled"  # by the client, its lost connection, or an operator
    FAILED = "failed"  # the engine or the platform could not finish it
    GUARDRAIL = "guardrail"  # the output guard stopped it
    EXPIRED = "expired"  # its deadline passed while it waited


class JobState(StrEnum):
    """State of a job in its pool."""

    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"
    SETTLED = "settled"
