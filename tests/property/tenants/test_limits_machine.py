"""Limits under any order of hold, start, settle, void, changed caps, revocation and clock jumps, on a real Valkey.

The reference model runs beside the scripts; the promises are checked from the record of what was let in, too.
"""

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from contracts.errors import AuthFailed, BudgetSpent, LimitExceeded
from contracts.tenancy import Limit, Metric, Scope
from contracts.tokens import TokenCounts
from stores.redis import open_redis
from tenants.limits.buckets import Limits
from tenants.limits.holds import HoldGranted, HoldHint
from tenants.limits.policy import GRAINS, RULES, Kind
from tests.functional.tenants.cast import ACME, KEY, NOON, PROJECT, request
from tests.property.tenants.model import Model

ZONE = "America/Sao_Paulo"
CAPS = st.sampled_from([4, 20, 60])
NEW_CAPS = st.sampled_from([0, 3, 20, 300])


class LimitsMachine(RuleBasedStateMachine):
    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.redis = open_redis(self.url)
        self.limits = Limits(self.redis, time_ms=NOON, settled_ttl_ms=10**10)
        self.model = Model(now=NOON, zone=ZONE)
        self.caps: dict[tuple[Scope, Metric], int] = {}
        self.asked: dict[int, tuple[int, int, int]] = {}
        self.epoch = 1
        self.next_number = 1
        # What was let in since a cap was last changed or the clock went back: (time, need, request).
        self.record: dict[tuple[Scope, Metric], list[tuple[int, int, int]]] = {}

    def run(self, call: Any) -> Any:
        return self.loop.run_until_complete(call)

    def teardown(self) -> None:
        self.run(self.redis.aclose(close_connection_pool=True))
        self.loop.close()

    @initialize(caps=st.tuples(*(st.tuples(st.sampled_from(list(Scope)), CAPS) for _ in Metric)))
    def begin(self, caps: tuple[tuple[Scope, int], ...]) -> None:
        """One cap of each metric, so that every hold is charged in every way of counting."""
        self.run(self.redis.flushdb())
        self.caps = {(scope, metric): cap for metric, (scope, cap) in zip(Metric, caps, strict=True)}
        self.run(self.limits.set_epochs(tenant_id=ACME, keys={KEY: 1}, tenant_epoch=1))

    def limits_now(self) -> list[Limit]:
        return [Limit(scope=scope, metric=metric, cap=cap) for (scope, metric), cap in self.caps.items()]

    def counters(self) -> dict[str, int]:
        stored = self.run(self.redis.hgetall(f"w:{{t:{ACME}}}:use"))
        return {name.decode(): int(value) for name, value in stored.items() if name.endswith((b":u", b":h"))}

    @rule(times=st.integers(1, 3), prompt=st.integers(0, 3), output=st.integers(0, 3), price=st.integers(0, 1))
    def new_hold(self, times: int, prompt: int, output: int, price: int) -> None:
        for _ in range(times):
            self.hold(self.next_number, prompt, output, (prompt + output) * price)
            self.next_number += 1

    @precondition(lambda self: self.model.holds)
    @rule(data=st.data())
    def repeated_hold(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.model.holds)[-6:]))
        self.hold(number, *self.asked[number])

    def known(self, data: st.DataObject) -> int:
        """One of the last holds, most often; now and then one that never was."""
        return data.draw(st.sampled_from([*sorted(self.model.holds)[-5:], 999_999]))

    def hold(self, number: int, prompt: int, output: int, cost: int) -> None:
        limits = self.limits_now()
        before = self.counters()
        asked = request(
            number,
            *limits,
            prompt_tokens=prompt,
            output_tokens_max=output,
            cost_max_nano=cost,
            timezone=ZONE,
            key_epoch=self.epoch,
        )
        try:
            answer = self.run(self.limits.hold(asked))
            seen = "granted" if isinstance(answer, HoldGranted) else "known"
        except (LimitExceeded, BudgetSpent):
            seen = "refused"
        was_new = number not in self.model.holds
        assert seen == self.model.hold(number, limits, prompt=prompt, output=output, cost=cost)
        if seen != "granted":
            assert self.counters() == before
        elif was_new:
            self.asked[number] = (prompt, output, cost)
            for charge in self.model.holds[number].charges:
                place = charge.limit.scope, charge.limit.metric
                self.record.setdefault(place, []).append((self.model.now, charge.need, number))

    @precondition(lambda self: self.model.holds)
    @rule(data=st.data(), attempt=st.integers(1, 3))
    def start(self, data: st.DataObject, attempt: int) -> None:
        number = self.known(data)
        name = request(number).request_id
        seen = self.run(self.limits.start(tenant_id=ACME, request_id=name, fence=f"{attempt}-x", attempt=attempt))
        assert seen == self.model.start(number, attempt)

    @precondition(lambda self: self.model.holds)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.model.holds)[-6:]))
        prompt, output, cost = self.asked[number]
        actual = (
            data.draw(st.integers(0, prompt)),
            data.draw(st.integers(0, output)),
            data.draw(st.integers(0, cost)),
        )
        settled = self.run(
            self.limits.settle(
                tenant_id=ACME,
                request_id=request(number).request_id,
                counts=TokenCounts(prompt=actual[0], completion=actual[1]),
                cost_nano=actual[2],
                outcome="ok",
                hint=HoldHint(project_id=PROJECT, api_key_id=KEY, admitted_at_ms=self.model.holds[number].at),
            )
        )
        expected = self.model.settle(number, prompt=actual[0], output=actual[1], cost=actual[2])
        assert (settled.first, settled.cost_nano) == expected

    @precondition(lambda self: self.model.holds)
    @rule(data=st.data())
    def void(self, data: st.DataObject) -> None:
        number = self.known(data)
        name = request(number).request_id
        assert self.run(self.limits.void(tenant_id=ACME, request_id=name, reason="x")) == self.model.void(number)

    @rule(data=st.data(), cap=NEW_CAPS)
    def change_limit(self, data: st.DataObject, cap: int) -> None:
        owned = data.draw(st.sampled_from(sorted(self.caps)))
        self.caps[owned] = cap
        self.record.pop(owned, None)

    @rule(step=st.sampled_from([1, 300, 900, 2_500, 60_000, 43_200_000]))
    def time_passes(self, step: int) -> None:
        self.model.now += step
        self.limits.time_ms = self.model.now

    @rule(step=st.sampled_from([5_000, 120_000, 90_000_000]))
    def clock_jumps_back(self, step: int) -> None:
        self.model.now -= step
        self.limits.time_ms = self.model.now
        self.record.clear()

    @rule()
    def revoke_and_come_back(self) -> None:
        """A revoked epoch is refused and changes nothing; an older reload does not undo it; a later epoch serves."""
        self.run(self.limits.set_epochs(tenant_id=ACME, keys={KEY: -(self.epoch + 1)}, tenant_epoch=1))
        self.run(self.limits.set_epochs(tenant_id=ACME, keys={KEY: self.epoch}, tenant_epoch=1))
        before = self.counters()
        with pytest.raises(AuthFailed):
            self.run(self.limits.hold(request(self.next_number, *self.limits_now(), timezone=ZONE)))
        assert self.counters() == before
        self.epoch += 2
        self.run(self.limits.set_epochs(tenant_id=ACME, keys={KEY: self.epoch}, tenant_epoch=1))

    @invariant()
    def scripts_and_model_agree(self) -> None:
        letters = {Scope.KEY: f"k:{KEY}", Scope.PROJECT: f"p:{PROJECT}", Scope.TENANT: f"t:{ACME}"}
        expected = {}
        for (scope, metric), counter in self.model.counters.items():
            name = f"{letters[Scope(scope)]}:{RULES[Metric(metric)].code}"
            expected[f"{name}:u"], expected[f"{name}:h"] = counter.used, counter.held
        assert self.counters() == expected
        assert all(value >= 0 for value in expected.values())

    @invariant()
    def what_is_open_never_passes_a_cap(self) -> None:
        for (scope, metric), let_in in self.record.items():
            if RULES[metric].kind is not Kind.CONCURRENT:
                continue
            open_now = [n for _, _, n in let_in if self.model.holds[n].state in ("held", "running")]
            assert len(open_now) <= self.caps[scope, metric]

    @invariant()
    def what_was_let_in_never_passes_a_bucket(self) -> None:
        """In every stretch of time: requests not voided <= cap + cap x minutes, whatever was refunded in between."""
        for (scope, metric), let_in in self.record.items():
            if metric is not Metric.REQUESTS_PER_MINUTE:
                continue
            cap = self.caps[scope, metric]
            # Largest surplus of any stretch that ends now: what a bucket of size cap that drains would hold.
            level, last = 0, None
            for at, need, number in let_in:
                if self.model.holds[number].state != "voided":
                    level = max(0, level - cap * (at - last)) if last is not None else 0
                    level, last = level + need * GRAINS, at
                    assert level <= cap * GRAINS

    @invariant()
    def each_open_hold_is_listed_and_no_other(self) -> None:
        listed = {name.decode() for name in self.run(self.redis.zrange(f"w:{{t:{ACME}}}:holds", 0, -1))}
        open_now = {
            request(number).request_id for number, hold in self.model.holds.items() if hold.state in ("held", "running")
        }
        assert listed == open_now


@pytest.mark.slow
class TestLimitsMachine:
    def test_keeps_every_promise_in_any_order(self, valkey_url: str) -> None:
        LimitsMachine.url = valkey_url
        run_state_machine_as_test(
            LimitsMachine,
            settings=settings(
                max_examples=40,
                stateful_step_count=50,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
            ),
        )
