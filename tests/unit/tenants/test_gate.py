"""The deadline and the breaker around the limits' store."""

import asyncio
import time

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from contracts.clock import FakeClock
from contracts.errors import Unavailable
from tenants.limits import gate as limits_gate
from tenants.limits.gate import FAILURES_MAX, REST_SECONDS, RETRY_AFTER_MS, Breaker, Gate


class TestBreaker:
    def test_opens_after_failures_in_a_row_and_lets_one_call_per_rest_through(self) -> None:
        breaker = Breaker()
        for _ in range(FAILURES_MAX):
            assert breaker.admits(now=0.0)
            breaker.failed(now=0.0)
        assert [breaker.admits(now=at) for at in (0.0, 0.9, 1.0, 1.1, 2.0)] == [False, False, True, False, True]

    def test_a_success_closes_it_and_forgets_the_failures(self) -> None:
        breaker = Breaker()
        for _ in range(FAILURES_MAX - 1):
            breaker.failed(now=0.0)
        breaker.succeeded()
        breaker.failed(now=0.0)
        assert breaker.admits(now=0.0)


class TestGate:
    async def test_refuses_at_once_while_the_store_rests_and_comes_back_by_itself(self) -> None:
        clock = FakeClock()
        gate = Gate(clock)
        tries = 0
        for _ in range(FAILURES_MAX + 5):
            with pytest.raises(Unavailable) as caught:  # noqa: PT012 - what is counted must be inside
                async with gate.call():
                    tries += 1
                    raise RedisConnectionError("away")
            assert caught.value.retry_after_ms == RETRY_AFTER_MS
        assert tries == FAILURES_MAX
        clock.advance(ms=int(REST_SECONDS * 1000))
        async with gate.call():
            tries += 1
        async with gate.call():
            tries += 1
        assert tries == FAILURES_MAX + 2

    async def test_a_complaint_of_a_script_is_no_sign_of_absence(self) -> None:
        gate = Gate(FakeClock())
        for _ in range(FAILURES_MAX + 1):
            with pytest.raises(Unavailable):
                async with gate.call():
                    raise ResponseError("OOM")
        async with gate.call():
            pass

    async def test_what_is_watched_may_open_it_and_never_closes_it(self) -> None:
        clock = FakeClock()
        gate = Gate(clock)
        for _ in range(FAILURES_MAX):
            async with gate.watch():
                pass
            with pytest.raises(Unavailable):
                await _fail(gate)
        with pytest.raises(Unavailable):
            async with gate.watch():
                pytest.fail("it rests")
        clock.advance(ms=int(REST_SECONDS * 1000))
        async with gate.watch():
            pass
        async with gate.call():
            pass
        assert gate.breaker.opened_at is None

    async def test_a_refusal_that_a_store_caused_counts_and_any_other_does_not(self) -> None:
        gate = Gate(FakeClock())
        with pytest.raises(Unavailable):
            async with gate.watch():
                raise Unavailable("no worker")
        assert gate.breaker.failures == 0
        with pytest.raises(Unavailable):
            async with gate.watch():
                raise Unavailable("the queue") from RedisConnectionError("away")
        assert gate.breaker.failures == 1

    async def test_a_store_that_is_silent_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(limits_gate, "DEADLINE_SECONDS", 0.02)
        gate = Gate(FakeClock())
        with pytest.raises(Unavailable):
            async with gate.call():
                await asyncio.Event().wait()
        assert gate.breaker.failures == 1

    async def test_a_store_that_answers_while_the_loop_is_busy_is_not_away(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits_gate, "DEADLINE_SECONDS", 0.04)
        gate, answered, loop = Gate(FakeClock()), asyncio.Event(), asyncio.get_running_loop()
        async with gate.call():
            loop.call_later(0.03, answered.set)
            time.sleep(0.2)  # noqa: ASYNC251 - the busy loop that this is about
            await answered.wait()
        assert gate.breaker.failures == 0


async def _fail(gate: Gate) -> None:
    async with gate.call():
        raise RedisConnectionError("away")
