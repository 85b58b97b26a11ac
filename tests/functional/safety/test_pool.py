"""guardrails-ai validators in real processes: what they judge, what happens when they are late, dead or nosy."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from contracts.clock import FakeClock
from safety.engines.pool import ValidatorPool
from safety.guard import check_prompt_with
from safety.policy import CompiledPolicy, ValidatorCall
from safety.stream import OutputGuard
from safety.verdicts import RuleState
from safety.window import Released
from stores.system import SystemClock

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[3]
monotonic = SystemClock().monotonic
KEY = "AKIA" + "IOSFODNN7EXAMPLE"


def call(validator: str, *, deadline_ms: int = 30_000, **arguments: Any) -> ValidatorCall:
    return ValidatorCall(validator=validator, arguments=json.dumps(arguments), deadline_ms=deadline_ms)


def policy(action: str, fail: str, **config: Any) -> CompiledPolicy:
    rule = {
        "name": "judge",
        "kind": "guardrails_ai",
        "stage": ["prompt", "output"],
        "action": action,
        "fail": fail,
        "config": {"deadline_ms": 10_000, **config},
    }
    return CompiledPolicy.compile({"id": "p", "version": 1, "rules": [rule]})


@pytest.fixture(scope="module")
def clock() -> FakeClock:
    """The pool's: its breakers rest as long as a test says."""
    return FakeClock()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(clock: FakeClock) -> AsyncIterator[ValidatorPool]:
    """One process for this file: its start takes seconds."""
    pool = ValidatorPool(processes=1, monotonic=clock.monotonic)
    yield pool
    await pool.close()


class TestValidatorPool:
    async def test_judges_with_each_validator_and_asks_the_network_nothing(self, pool: ValidatorPool) -> None:
        await pool.warm()
        secret = await pool.validate(call("secrets_present"), f'key = "{KEY}"')
        assert (secret.state, secret.passed, secret.fixed) == (RuleState.RAN, False, 'key = "********"')
        assert (await pool.validate(call("secrets_present"), "nothing here")).passed
        long = await pool.validate(call("valid_length", min=1, max=3), "hello")
        assert (long.passed, long.fixed) == (False, "hel")
        web = await pool.validate(call("web_sanitization"), "<script>x</script>hi")
        assert (web.passed, web.fixed) == (False, "&lt;script&gt;x&lt;/script&gt;hi")
        other = await pool.validate(call("regex_match", regex="^a+$"), "bbb")
        assert (other.passed, other.fixed) == (False, None)
        assert (await pool.validate(call("regex_match", regex="^a+$"), "aaa")).passed
        assert pool.refused_lookups == 0

    async def test_keeps_its_deadline_and_replaces_the_process_that_missed_it(self, pool: ValidatorPool) -> None:
        await pool.warm()
        before = pool.pids
        late = await pool.validate(call("regex_match", deadline_ms=200, regex="(a+)+$"), "a" * 40 + "b")
        assert late.state is RuleState.TIMED_OUT
        await pool.warm()
        after = await pool.validate(call("regex_match", regex="b"), "b")
        assert (after.state, after.passed) == (RuleState.RAN, True)
        assert pool.pids != before

    async def test_survives_the_death_of_its_process(self, pool: ValidatorPool) -> None:
        await pool.warm()
        os.kill(pool.pids[0], signal.SIGKILL)
        await pool.validate(call("valid_length", max=3), "ok")  # notices the death, or a new process answers already
        await pool.warm()
        second = await pool.validate(call("valid_length", max=3), "ok")
        assert (second.state, second.passed) == (RuleState.RAN, True)

    async def test_says_failed_when_a_validator_refuses_its_arguments(self, pool: ValidatorPool) -> None:
        outcome = await pool.validate(call("valid_length", nonsense=1), "ok")
        assert outcome.state is RuleState.FAILED

    async def test_opens_the_breaker_of_one_rule_only(self, pool: ValidatorPool, clock: FakeClock) -> None:
        await pool.warm()
        bad, good = call("valid_length", wrong=1), call("valid_length", max=3)
        for _ in range(5):
            assert (await pool.validate(bad, "ok")).state is RuleState.FAILED
        assert (await pool.validate(bad, "ok")).state is RuleState.REFUSED
        assert (await pool.validate(good, "ok")).state is RuleState.RAN
        clock.advance(ms=31_000)
        assert (await pool.validate(bad, "ok")).state is RuleState.FAILED

    async def test_refuses_more_than_may_wait(self) -> None:
        pool = ValidatorPool(processes=1, queue_max=1)
        await pool.warm()
        slow = call("regex_match", deadline_ms=300, regex="(a+)+$")
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(pool.validate(slow, "a" * 40 + "b")) for _ in range(4)]
            states = [task.result().state for task in running]
        finally:
            await pool.close()
        assert states.count(RuleState.REFUSED) >= 2
        assert RuleState.TIMED_OUT in states


class TestNetworkGate:
    async def test_refuses_and_counts_a_look_up(self) -> None:
        code = (
            "import socket\n"
            "from safety.engines.process import NetworkGate\n"
            "gate = NetworkGate(); gate.close()\n"
            "asks = [lambda: socket.getaddrinfo('example.org', 443)]\n"
            "asks += [lambda: socket.create_connection(('127.0.0.1', 9))]\n"
            "for ask in asks:\n"
            "    try:\n        ask()\n"
            "    except PermissionError:\n        pass\n"
            "print(gate.refused)"
        )
        path = os.pathsep.join([str(ROOT / "platform"), str(ROOT)])
        ran = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", code],
            env={"PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert ran.stdout.strip() == "2"


class TestGuardWithValidators:
    async def test_redacts_a_prompt_by_the_validators_own_fix(self, pool: ValidatorPool) -> None:
        await pool.warm()
        rules = policy("redact", "closed", validator="secrets_present")
        verdict = await check_prompt_with(rules, ["hi", f'k = "{KEY}"'], pool=pool, monotonic=monotonic)
        assert verdict.redacted_texts == ("hi", 'k = "********"')
        assert verdict.verdicts[0].startswith("stage=prompt rule=judge action=redact state=ran hits=1 acted=yes us=")

    async def test_blocks_a_whole_answer_before_any_of_it_leaves(self, pool: ValidatorPool) -> None:
        guard = OutputGuard(policy("block", "closed", validator="secrets_present"), pool, monotonic=monotonic)
        for piece in ("safe text first, ", 'then k = "', KEY, '"'):
            assert await guard.feed("0:content", piece) == Released("", blocked=False)
        assert await guard.finish("0:content") == Released("", blocked=True)
        assert guard.verdicts[0].startswith("stage=output rule=judge action=block state=ran hits=1 acted=yes us=")

    @pytest.mark.parametrize(("answer", "blocked"), [('{"age": 3}', False), ('{"age": "3"}', True), ("three", True)])
    async def test_judges_an_answer_by_a_json_schema_and_its_reasoning_not(
        self, pool: ValidatorPool, answer: str, blocked: bool
    ) -> None:
        config = {"schema": {"type": "object", "properties": {"age": {"type": "integer"}}}}
        rule = {"name": "shape", "kind": "json_schema", "stage": ["output"], "action": "block", "config": config}
        await pool.warm()
        guard = OutputGuard(
            CompiledPolicy.compile({"id": "p", "version": 1, "rules": [rule]}), pool, monotonic=monotonic
        )
        for channel, text in (("0:reasoning", "hm"), ("0:content", answer)):
            assert await guard.feed(channel, text) == Released("", blocked=False)
        assert await guard.finish("0:reasoning") == Released("hm", blocked=False)
        assert await guard.finish("0:content") == Released("" if blocked else answer, blocked=blocked)

    @pytest.mark.parametrize(("fail", "blocked", "acted"), [("closed", True, "yes"), ("open", False, "no")])
    async def test_follows_the_rules_fail_policy_when_it_is_late_and_says_so(
        self, pool: ValidatorPool, fail: str, blocked: bool, acted: str
    ) -> None:
        await pool.warm()
        rules = policy("block", fail, validator="regex_match", arguments={"regex": "(a+)+$"}, deadline_ms=100)
        text = "a" * 40 + "b"
        guard = OutputGuard(rules, pool, monotonic=monotonic)
        await guard.feed("0", text)
        released = await guard.finish("0")
        assert released == Released("" if blocked else text, blocked=blocked)
        wanted = f"stage=output rule=judge action=block state=timed_out hits=0 acted={acted} us="
        assert guard.verdicts[0].startswith(wanted)


STREAMS = 200


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def crowded() -> AsyncIterator[ValidatorPool]:
    """Two processes, and room for all of a crowd to wait."""
    pool = ValidatorPool(processes=2, queue_max=STREAMS)
    await pool.warm()
    yield pool
    await pool.close()


class TestCrowd:
    async def test_t16_two_hundred_calls_are_answered_each_with_its_own(self, crowded: ValidatorPool) -> None:
        cut = call("valid_length", min=1, max=8)
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(crowded.validate(cut, f"{n:07d}: of stream {n}")) for n in range(STREAMS)]
        outcomes = [task.result() for task in asked]
        assert {outcome.state for outcome in outcomes} == {RuleState.RAN}
        assert [outcome.fixed for outcome in outcomes] == [f"{n:07d}:" for n in range(STREAMS)]

    @pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
    async def test_a_process_killed_or_frozen_in_a_crowd_costs_no_answer_its_rule(
        self, crowded: ValidatorPool, blow: signal.Signals
    ) -> None:
        """Each answer is judged, or ends as its rule says when it cannot be: closed lets nothing out, open all."""
        await crowded.warm()
        rules = {
            fail: policy("block", fail, validator="valid_length", arguments={"min": 1, "max": 9}, deadline_ms=500)
            for fail in ("open", "closed")
        }

        async def guarded(number: int) -> tuple[str, str, Released, str]:
            fail, text = ("open", "closed")[number % 2], f"text {number}" + " is too long" * (number % 3 == 0)
            guard = OutputGuard(rules[fail], crowded, monotonic=monotonic)
            await guard.feed("0:content", text)
            if number == STREAMS // 10:
                os.kill(crowded.pids[0], blow)
            return fail, text, await guard.finish("0:content"), guard.verdicts[0]

        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(guarded(number)) for number in range(STREAMS)]
        states = set()
        for fail, text, released, verdict in (task.result() for task in running):
            state = verdict.partition("state=")[2].split()[0]
            ran = state == "ran"
            states.add(state)
            blocked = len(text) > 9 if ran else fail == "closed"
            assert released == Released("" if blocked else text, blocked=blocked)
            assert f"hits={int(ran and blocked)} acted={'yes' if blocked else 'no'}" in verdict
        assert "ran" in states
        assert states & {"failed", "timed_out", "refused"}
        await crowded.warm()
        assert (await crowded.validate(call("valid_length", max=3), "ok")).state is RuleState.RAN
