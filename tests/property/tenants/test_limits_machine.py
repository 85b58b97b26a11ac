"""Limits under any order of hold, start, settle, void, sweep, changed caps, clock jumps, killed stores, and revocations
that last.

On a real Valkey of its own. The reference model runs beside the scripts; the promises are checked from the record of
what was let in, too, and the audit's arithmetic is checked against it after every step.
"""

import asyncio
from pathlib import Path
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

from contracts.errors import AuthFailed, BudgetSpent, LimitExceeded, PermissionDenied
from contracts.tenancy import Limit, Metric, Scope
from contracts.tokens import TokenCounts
from controlplane.local.children import LocalServer
from stores.redis import open_redis
from tenants.limits import keys
from tenants.limits.audit import Audit, Rebuilt
from tenants.limits.buckets import Limits
from tenants.limits.holds import HoldExisting, HoldGranted, HoldHint, HoldRequest, HoldState
from tenants.limits.policy import GRAINS, RULES, Amount, Kind, counted
from tests.factories.valkeys import on_disk, valkey_of_its_own
from tests.functional.tenants.cast import ACME, KEY, NOON, PROJECT, request
from tests.property.tenants.model import Model, Place

ZONE = "America/Sao_Paulo"
CAPS = st.sampled_from([4, 20, 60])
NEW_CAPS = st.sampled_from([0, 3, 20, 300])
COUNTED = [metric for metric in Metric if RULES[metric].kind is not Kind.REQUEST]
MODELS = st.sampled_from(["a", "b"])
PLACES = st.tuples(st.sampled_from(list(Scope)), st.sampled_from([None, None, "a", "b"]), CAPS)
MORE = st.lists(st.tuples(st.sampled_from(COUNTED), PLACES), max_size=5)
TENANT = "tenant"
OPEN = (HoldState.HELD, HoldState.RUNNING)


class LimitsMachine(RuleBasedStateMachine):
    server: LocalServer

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.redis = open_redis(f"redis://127.0.0.1:{self.server.spec.port}/0")
        self.limits = Limits(self.redis, time_ms=NOON, settled_ttl_ms=10**10)
        self.audit = Audit(self.redis, gate=self.limits.gate)
        self.jumped_far = self.changed_caps = False
        self.model = Model(now=NOON, zone=ZONE)
        self.caps: dict[Place, int] = {}
        self.asked: dict[int, tuple[int, int, int, str, bool]] = {}
        self.removed: dict[Place, int] = {}
        self.epochs = {KEY: 1, TENANT: 1}  # what callers know of
        self.blocked = ""  # whose epoch says so, while the model is blocked
        self.next_number = 1
        # What was let in since a cap was last changed or the clock went back: (time, need, request).
        self.record: dict[Place, list[tuple[int, int, int]]] = {}

    def run(self, call: Any) -> Any:
        return self.loop.run_until_complete(call)

    def teardown(self) -> None:
        self.run(self.redis.aclose(close_connection_pool=True))
        self.loop.close()

    @initialize(owned=st.tuples(*(PLACES for _ in COUNTED)), more=MORE)
    def begin(
        self,
        owned: tuple[tuple[Scope, str | None, int], ...],
        more: list[tuple[Metric, tuple[Scope, str | None, int]]],
    ) -> None:
        """A cap of each metric, so that holds are charged in every way of counting; of some several, by model too."""
        self.run(self.redis.flushdb())
        places = [*zip(COUNTED, owned, strict=True), *more]
        self.caps = {(scope, metric, model): cap for metric, (scope, model, cap) in places}
        self.tell({})

    def tell(self, epochs: dict[str, int]) -> None:
        told = {**self.epochs, **epochs}
        self.run(self.limits.set_epochs(tenant_id=ACME, keys={KEY: told[KEY]}, tenant_epoch=told[TENANT]))

    def limits_now(self, model: str) -> tuple[Limit, ...]:
        every = [
            Limit(scope=scope, metric=metric, cap=cap, model=of, alerts=(50, 100))
            for (scope, metric, of), cap in self.caps.items()
        ]
        return counted(every, model=model)

    def counters(self) -> dict[str, int]:
        stored = self.run(self.redis.hgetall(keys.use(ACME)))
        return {name.decode(): int(value) for name, value in stored.items() if name.endswith((b":u", b":h"))}

    @rule(
        times=st.integers(1, 3),
        prompt=st.integers(0, 3),
        output=st.integers(0, 3),
        price=st.integers(0, 2),
        model=MODELS,
        cut=st.booleans(),
    )
    def new_hold(self, times: int, prompt: int, output: int, price: int, model: str, cut: bool) -> None:
        for _ in range(times):
            self.hold(self.next_number, prompt, output, price, model, cut)
            self.next_number += 1

    @precondition(lambda self: self.model.holds)
    @rule(data=st.data())
    def repeated_hold(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.model.holds)[-6:]))
        self.hold(number, *self.asked[number])

    def known(self, data: st.DataObject) -> int:
        """One of the last holds, most often; now and then one that never was."""
        return data.draw(st.sampled_from([*sorted(self.model.holds)[-5:], 999_999]))

    def hold(self, number: int, prompt: int, output: int, price: int, model: str, cut: bool) -> None:
        limits = self.limits_now(model)
        before = self.counters()
        asked = request(
            number,
            *limits,
            prompt_tokens=prompt,
            output_tokens_max=output,
            cost_max_nano=(prompt + output) * price,
            output_nano_per_token=price,
            cut_to_affordable=cut,
            timezone=ZONE,
            key_epoch=self.epochs[KEY],
            tenant_epoch=self.epochs[TENANT],
        )
        seen, answer = self.answer(asked)
        was_new = number not in self.model.holds
        assert seen == self.model.hold(number, list(limits), prompt=prompt, output=output, price=price, cut=cut)
        if isinstance(answer, HoldGranted):
            assert answer.output_tokens == self.model.holds[number].output
            assert answer.cut == (answer.output_tokens < self.asked.get(number, (prompt, output))[1])
        if seen != "granted":
            assert self.counters() == before
        elif was_new:
            self.asked[number] = (prompt, output, price, model, cut)
            for charge in self.model.holds[number].charges:
                self.record.setdefault(charge.place, []).append((self.model.now, charge.need, number))

    def answer(self, asked: HoldRequest) -> tuple[str, HoldGranted | HoldExisting | None]:
        """What a hold is told, in the model's words, and what it is given."""
        try:
            given = self.run(self.limits.hold(asked))
        except (LimitExceeded, BudgetSpent):
            return "refused", None
        except (AuthFailed, PermissionDenied):
            return "blocked", None
        return "granted" if isinstance(given, HoldGranted) else "known", given

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
        prompt, _, price, *_ = self.asked[number]
        used = data.draw(st.integers(0, prompt)), data.draw(st.integers(0, self.model.holds[number].output))
        actual = (*used, data.draw(st.integers(0, sum(used) * price)))
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
        owned = data.draw(st.sampled_from(list(self.caps)))
        self.caps[owned] = cap
        self.changed_caps = True
        self.record.pop(owned, None)

    @precondition(lambda self: len(self.caps) > 1)
    @rule(data=st.data())
    def limit_is_removed(self, data: st.DataObject) -> None:
        """What it counts of requests under way goes on; what comes meanwhile is not in it."""
        owned = data.draw(st.sampled_from(list(self.caps)))
        self.removed[owned] = self.caps.pop(owned)
        self.record.pop(owned, None)

    @precondition(lambda self: self.removed)
    @rule(data=st.data())
    def limit_is_set_again(self, data: st.DataObject) -> None:
        owned = data.draw(st.sampled_from(list(self.removed)))
        self.caps[owned] = self.removed.pop(owned)

    @rule(step=st.sampled_from([1, 300, 900, 2_500, 60_000, 43_200_000, 1_728_000_000]))
    def time_passes(self, step: int) -> None:
        self.model.now += step
        self.limits.time_ms = self.model.now

    @rule(step=st.sampled_from([5_000, 120_000, 90_000_000]))
    def clock_jumps_back(self, step: int) -> None:
        self.model.now -= step
        self.limits.time_ms = self.model.now
        self.record.clear()
        self.jumped_far = self.jumped_far or step > 3_600_000

    @precondition(lambda self: not self.model.blocked)
    @rule(whose=st.sampled_from([KEY, TENANT]), sure=st.sampled_from([False, False, True]))
    def revoke(self, whose: str, sure: bool) -> None:
        """A key, or the tenant with all its keys: from here on nothing is let in, whatever else happens."""
        if sure:
            self.tell({whose: -(self.epochs[whose] + 1)})
            self.blocked, self.model.blocked = whose, True

    @precondition(lambda self: self.model.blocked)
    @rule()
    def reloads_come_late(self) -> None:
        """What was read before the revocation, or beside it, does not undo it."""
        for later in (0, 1):
            self.tell({self.blocked: self.epochs[self.blocked] + later})

    @precondition(lambda self: self.model.blocked)
    @rule()
    def come_back(self) -> None:
        """Only a later epoch serves."""
        self.epochs[self.blocked] += 2
        self.model.blocked = False
        self.tell({})

    @rule()
    def sweep(self) -> None:
        """The settler's round: what is past its deadline and never ran is voided."""
        self.audit.time_ms = self.model.now
        for hold in self.run(self.limits.due(tenant_id=ACME, margin_ms=0, limit=5)):
            number = int(hold.request_id[-12:])
            assert hold.state in OPEN
            assert self.model.holds[number].state == hold.state
            if hold.state is HoldState.HELD:
                assert self.run(self.limits.void(tenant_id=ACME, request_id=hold.request_id, reason="x"))
                assert self.model.void(number)

    @rule(sure=st.sampled_from([False, False, False, True]))
    def store_is_killed_and_comes_back(self, sure: bool) -> None:
        if sure:
            self.run(on_disk(self.redis))
            self.server.stop()
            self.server.start()
            # The loop stood still while its connections were closed: it learns of it here.
            self.run(self.redis.connection_pool.disconnect())

    @precondition(lambda self: not self.jumped_far)
    @rule()
    def rebuild_changes_nothing(self) -> None:
        """Counters are what the meter's sums below the watermark and the slots since say: drift 0, in used and held."""
        self.audit.time_ms = self.model.now
        names = {self.name_of(where): where for where in self.model.counters}
        found = self.run(self.audit.snapshot(tenant_id=ACME, counters=list(names), reading=True))
        if found.watermark_ms is None:
            return
        wanted = []
        for standing in found.standings:
            where = names[standing.counter]
            kind = RULES[where[1]].kind
            assert kind is Kind.RATE or standing.held_drift == 0
            if kind in (Kind.WINDOW, Kind.LIFETIME):
                below = self.model.metered(where, below_ms=found.watermark_ms)
                assert standing.drift(below=below) == 0
                wanted.append(
                    Rebuilt(
                        counter=standing.counter, kind=kind, below=below, below_ms=found.watermark_ms,
                        window=standing.window,
                    )
                )  # fmt: skip
        rebuild = self.audit.rebuild(tenant_id=ACME, snapshot=found, metered_ms=found.now_ms, counters=wanted)
        changed = self.run(rebuild)
        assert changed == 0

    def name_of(self, where: Place) -> str:
        scope, metric, model = where
        mine = Limit(scope=scope, metric=metric, cap=0, model=model)
        return keys.counter(mine, tenant_id=ACME, project_id=PROJECT, api_key_id=KEY)

    @invariant()
    def scripts_and_model_agree(self) -> None:
        expected = {}
        for where, counter in self.model.counters.items():
            name = self.name_of(where)
            expected[f"{name}:u"], expected[f"{name}:h"] = counter.used, counter.held
        assert self.counters() == expected
        assert all(value >= 0 for value in expected.values())

    @invariant()
    def who_is_blocked_gets_nothing(self) -> None:
        """After every rule, by what its callers knew and by what the revocation itself is called."""
        for later in (0, 1) if self.model.blocked else ():
            epochs = {**self.epochs, self.blocked: self.epochs[self.blocked] + later}
            before = self.counters()
            asked = request(
                self.next_number,
                *self.limits_now("a"),
                timezone=ZONE,
                key_epoch=epochs[KEY],
                tenant_epoch=epochs[TENANT],
            )
            assert self.answer(asked) == ("blocked", None)
            assert self.counters() == before

    @invariant()
    def what_is_left_is_never_below_zero(self) -> None:
        if not self.model.counters:
            return
        wanted = [Limit(scope=s, metric=m, cap=cap, model=of) for (s, m, of), cap in self.caps.items()]
        uses = self.run(
            self.limits.usage(tenant_id=ACME, project_id=PROJECT, api_key_id=KEY, limits=wanted, timezone=ZONE)
        )
        assert all(use.free >= 0 and use.used >= 0 and use.held >= 0 for use in uses)

    @invariant()
    def what_is_open_never_passes_a_cap(self) -> None:
        for where, let_in in self.record.items():
            kind = RULES[where[1]].kind
            states = {Kind.CONCURRENT: OPEN, Kind.QUEUED: (HoldState.HELD,)}.get(kind, ())
            assert len([n for _, _, n in let_in if self.model.holds[n].state in states]) <= self.caps[where]

    @invariant()
    def what_is_spent_and_may_still_be_never_passes_a_budget(self) -> None:
        """By the record alone: settled at its cost, open at its worst, in the window of its admission."""
        for where, let_in in self.record.items():
            if RULES[where[1]].amount is not Amount.MONEY:
                continue
            sums: dict[str, int] = {}
            for _, need, number in let_in:
                hold = self.model.holds[number]
                label = next(charge.label for charge in hold.charges if charge.place == where)
                worst = need if hold.state in OPEN else hold.cost
                sums[label] = sums.get(label, 0) + worst
            assert all(spent <= self.caps[where] for spent in sums.values())

    @invariant()
    def what_was_let_in_never_passes_a_bucket(self) -> None:
        """In every stretch of time: requests not voided <= cap + cap x minutes, whatever was refunded in between."""
        for where, let_in in self.record.items():
            if where[1] is not Metric.REQUESTS_PER_MINUTE:
                continue
            cap = self.caps[where]
            # Largest surplus of any stretch that ends now: what a bucket of size cap that drains would hold.
            level, last = 0, None
            for at, need, number in let_in:
                if self.model.holds[number].state != "voided":
                    level = max(0, level - cap * (at - last)) if last is not None else 0
                    level, last = level + need * GRAINS, at
                    assert level <= cap * GRAINS

    @invariant()
    def an_alert_is_told_once_in_its_window_under_a_cap(self) -> None:
        told = [
            (entry[b"counter"], entry[b"window"], entry[b"told"], entry[b"cap"])
            for _, entry in self.run(self.redis.xrange(keys.alerts(ACME)))
        ]
        if not self.changed_caps and not self.jumped_far:
            assert len(set(told)) == len(told)

    @invariant()
    def each_open_hold_is_listed_and_no_other(self) -> None:
        listed = {name.decode() for name in self.run(self.redis.zrange(keys.holds(ACME), 0, -1))}
        open_now = {request(number).request_id for number, hold in self.model.holds.items() if hold.state in OPEN}
        assert listed == open_now


@pytest.mark.slow
class TestLimitsMachine:
    def test_keeps_every_promise_in_any_order(self, tmp_path: Path) -> None:
        with valkey_of_its_own(tmp_path) as LimitsMachine.server:
            run_state_machine_as_test(
                LimitsMachine,
                settings=settings(
                    max_examples=40,
                    stateful_step_count=50,
                    deadline=None,
                    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
                ),
            )
