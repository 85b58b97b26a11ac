"""The limits in plain Python, slow and obvious: what the scripts must do, one request at a time.

Every charge is kept with its time, so that caps are checked from the record of what was let in, not from counters.
"""

from dataclasses import dataclass, field

from contracts.tenancy import Limit, Metric, Scope
from tenants.limits import policy
from tenants.limits.policy import GRAINS, MINUTE_MS, RULES, Amount, Kind, Window

Place = tuple[Scope, Metric, str | None]


@dataclass
class Counter:
    used: int = 0
    held: int = 0
    at: int | None = None
    window: Window | None = None
    last_cap: int = 0


@dataclass
class Charge:
    limit: Limit
    need: int
    label: str

    @property
    def place(self) -> Place:
        return place(self.limit)


@dataclass
class Hold:
    at: int
    charges: list[Charge]
    state: str = "held"
    attempt: int = 0
    output: int = 0
    cost: int = 0
    actual: dict[Amount, int] = field(default_factory=dict)


@dataclass
class Model:
    """One tenant with one key in one project; counters by scope, metric and model."""

    now: int
    zone: str
    counters: dict[Place, Counter] = field(default_factory=dict)
    holds: dict[int, Hold] = field(default_factory=dict)
    blocked: bool = False  # its key is revoked, or the tenant suspended

    def hold(self, number: int, limits: list[Limit], *, prompt: int, output: int, price: int, cut: bool) -> str:
        """`granted`, `known`, `refused` or `blocked`. `price` is of each token; `cut`: rather fewer than a refusal."""
        if self.blocked:
            return "blocked"
        if number in self.holds:
            return "granted" if self.holds[number].state == "held" else "known"
        counters = [(limit, self.current(limit)) for limit in limits]
        if cut and price:
            money = [(limit.cap - one.used - one.held) // price for limit, one in counters if is_money(limit)]
            affordable = min([prompt + output, *money]) - prompt
            output = affordable if affordable >= 1 else output
        needs = amounts(prompt, output, (prompt + output) * price)
        plan = [(limit, needs[RULES[limit.metric].amount], counter) for limit, counter in counters]
        if not all(fits(limit, need, counter) for limit, need, counter in plan):
            return "refused"
        charges = []
        for limit, need, counter in plan:
            if RULES[limit.metric].kind is Kind.RATE:
                counter.used += need * GRAINS
            else:
                counter.held += need
            counter.last_cap = limit.cap
            self.counters[place(limit)] = counter
            charges.append(Charge(limit, need, counter.window.label if counter.window else ""))
        self.holds[number] = Hold(at=self.now, charges=charges, output=output)
        return "granted"

    def start(self, number: int, attempt: int) -> bool:
        hold = self.holds.get(number)
        if hold is None or hold.state not in ("held", "running") or hold.attempt > attempt:
            return False
        if hold.state == "held":
            for charge in hold.charges:
                if RULES[charge.limit.metric].kind is Kind.QUEUED:
                    self.counters[charge.place].held -= charge.need
        hold.state, hold.attempt = "running", attempt
        return True

    def settle(self, number: int, *, prompt: int, output: int, cost: int) -> tuple[bool, int]:
        hold = self.holds[number]
        if hold.state == "voided":
            return False, 0
        if hold.state == "settled":
            return False, hold.cost
        actual = hold.actual = amounts(prompt, output, cost)
        for charge in hold.charges:
            self.close(hold, charge, actual[RULES[charge.limit.metric].amount])
        hold.state, hold.cost = "settled", cost
        return True, cost

    def void(self, number: int) -> bool:
        hold = self.holds.get(number)
        if hold is None or hold.state not in ("held", "voided"):
            return False
        if hold.state == "held":
            for charge in hold.charges:
                self.close(hold, charge, None)
            hold.state = "voided"
        return True

    def close(self, hold: Hold, charge: Charge, actual: int | None) -> None:
        limit = charge.limit
        counter = self.counters[place(limit)]
        kind = RULES[limit.metric].kind
        if kind is Kind.RATE:
            more = (actual or 0) - charge.need
            if more >= 0:
                counter.used += more * GRAINS
            else:
                most = max(limit.cap, counter.last_cap)
                back = policy.refund(grains=-more * GRAINS, cap=most, since_ms=hold.at, now_ms=self.now)
                counter.used = max(0, counter.used - back)
            return
        if kind is Kind.WINDOW and (counter.window is None or counter.window.label != charge.label):
            return
        if kind is not Kind.QUEUED or hold.state == "held":
            counter.held -= charge.need
        if actual is None or kind in (Kind.CONCURRENT, Kind.QUEUED):
            return
        if kind is Kind.OUTPUT:
            assert counter.at is not None
            counter.used = policy.drained(debt=counter.used, cap=counter.last_cap, since_ms=counter.at, now_ms=self.now)
            counter.at = max(counter.at, self.now)
            counter.used += actual * GRAINS
        else:
            counter.used += actual

    def current(self, limit: Limit) -> Counter:
        """A copy of the counter as it stands now."""
        stored = self.counters.get(place(limit), Counter())
        copy = Counter(stored.used, stored.held, stored.at, stored.window, stored.last_cap)
        kind = RULES[limit.metric].kind
        if kind in (Kind.RATE, Kind.OUTPUT):
            at = self.now if copy.at is None or copy.at - self.now > MINUTE_MS else copy.at
            copy.used = policy.drained(debt=copy.used, cap=limit.cap, since_ms=at, now_ms=self.now)
            copy.at = max(at, self.now)
        elif kind is Kind.WINDOW:
            window = policy.window_of(metric=limit.metric, timezone=self.zone, now_ms=self.now)
            old = copy.window
            keeps = old is not None and (
                old.label == window.label or (old.label > window.label and old.start_ms <= self.now + 86_400_000)
            )
            if not keeps:
                copy = Counter(window=window, last_cap=copy.last_cap)
        return copy

    def metered(self, where: Place, *, below_ms: int) -> int:
        """What a metering of all settled requests would add up for a counter's window, admitted before `below_ms`."""
        window = self.counters[where].window
        return sum(
            hold.actual[RULES[charge.limit.metric].amount]
            for hold in self.holds.values()
            for charge in hold.charges
            if hold.state == "settled"
            and charge.place == where
            and hold.at < below_ms
            and (window is None or charge.label == window.label)
        )


def is_money(limit: Limit) -> bool:
    return RULES[limit.metric].amount is Amount.MONEY


def place(limit: Limit) -> Place:
    return limit.scope, limit.metric, limit.model


def amounts(prompt: int, output: int, cost: int) -> dict[Amount, int]:
    return {
        Amount.REQUESTS: 1,
        Amount.INPUT: prompt,
        Amount.OUTPUT: output,
        Amount.TOKENS: prompt + output,
        Amount.MONEY: cost,
    }


def fits(limit: Limit, need: int, counter: Counter) -> bool:
    if limit.cap == 0:
        return False
    if need == 0:
        return True
    if RULES[limit.metric].kind in (Kind.RATE, Kind.OUTPUT):
        return counter.used + (counter.held + need) * GRAINS <= limit.cap * GRAINS
    return counter.used + counter.held + need <= limit.cap
