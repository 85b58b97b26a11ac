"""Local mode: when a child that died is started again. Pure; called by the supervisor with the times it measured.

Invariant: a child that cannot live is not started for ever: after `deaths_max` deaths in a row, none of which
came after `stable_seconds` of service, the answer is to give up.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Exponential back-off with a cap. Durations in seconds."""

    first_wait: float = 0.2
    wait_max: float = 10.0
    deaths_max: int = 6
    stable_seconds: float = 30.0
    # A child that is silent this often in a row, asked at this interval, hangs.
    silences_max: int = 6
    pulse_seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class Again:
    """Start it again after `wait` seconds. `deaths` is how many in a row that makes."""

    wait: float
    deaths: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Leave it. `deaths` is how many in a row there were."""

    deaths: int


def decide(*, policy: RestartPolicy, deaths_before: int, served_seconds: float) -> Again | GiveUp:
    """What to do with a child that just died after serving for `served_seconds` (0: it never served)."""
    deaths = 1 if served_seconds >= policy.stable_seconds else deaths_before + 1
    if deaths >= policy.deaths_max:
        return GiveUp(deaths=deaths)
    return Again(wait=min(policy.first_wait * 2 ** (deaths - 1), policy.wait_max), deaths=deaths)
