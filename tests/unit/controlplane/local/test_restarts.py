"""When a dead child is started again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controlplane.local.restarts import Again, GiveUp, RestartPolicy, decide

POLICY = RestartPolicy(first_wait=0.2, wait_max=10.0, deaths_max=6, stable_seconds=30.0)


class TestDecide:
    def test_waits_twice_as_long_after_each_quick_death(self) -> None:
        waits = []
        deaths = 0
        while isinstance(verdict := decide(policy=POLICY, deaths_before=deaths, served_seconds=1.0), Again):
            waits.append(verdict.wait)
            deaths = verdict.deaths
        assert waits == [0.2, 0.4, 0.8, 1.6, 3.2]
        assert verdict == GiveUp(deaths=6)

    def test_forgets_deaths_after_a_time_of_service(self) -> None:
        assert decide(policy=POLICY, deaths_before=5, served_seconds=30.0) == Again(wait=0.2, deaths=1)

    def test_never_waits_longer_than_the_cap(self) -> None:
        patient = RestartPolicy(deaths_max=100)
        assert decide(policy=patient, deaths_before=50, served_seconds=0.0) == Again(wait=10.0, deaths=51)

    @given(st.lists(st.floats(min_value=0, max_value=29.9), min_size=6, max_size=50))
    def test_gives_up_whatever_the_short_lives_were(self, lives: list[float]) -> None:
        deaths = 0
        for served in lives:
            verdict = decide(policy=POLICY, deaths_before=deaths, served_seconds=served)
            deaths = verdict.deaths
            if isinstance(verdict, GiveUp):
                break
        assert deaths == POLICY.deaths_max
