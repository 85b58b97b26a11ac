"""A period's usage under its contract, as the lines of an invoice. Pure: the same input makes the same lines.

Called by `billing.invoicing` and by what-if re-rating. Invariants: the lines sum to the net amount, net and tax to the
total, and every one is an amount that can be paid; usage is charged at the unit price of its row and at nothing else;
the second rating of the same input differs from the first by nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from billing.rating.prices import Meter, per_million
from billing.rating.rounding import round_to_minor
from billing.rating.tax import Tax
from billing.rating.terms import Terms, Tier, discounted, for_seconds, part_of, tiers_of

_METERS = {meter: place for place, meter in enumerate(Meter)}


class LineKind(StrEnum):
    """In the order in which an invoice shows them."""

    USAGE = "usage"
    TIER = "tier"
    DISCOUNT = "discount"
    FEE = "fee"
    COVERED = "covered"
    MINIMUM = "minimum"
    ADJUSTMENT = "adjustment"
    ROUNDING = "rounding"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one meter at one price. Cost is `tokens` x `unit_nano`, exactly."""

    model: str
    service_class: str
    meter: Meter
    price_id: str
    unit_nano: int
    tokens: int

    @property
    def nano(self) -> int:
        return self.tokens * self.unit_nano


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of the period with one contract."""

    terms: Terms
    seconds: int
    usage: tuple[Usage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjustment:
    """What people agreed on beside usage; negative = in the customer's favour."""

    key: str
    text: str
    nano: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """`key` names the line in every rating of its period. `nano` can be paid; it is `exact_nano` rounded."""

    key: str
    kind: LineKind
    text: str
    tokens: int | None
    unit_nano: int | None
    exact_nano: int
    nano: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rated:
    """A document's amounts in nano-units."""

    currency: str
    lines: tuple[Line, ...]
    net_nano: int
    tax_nano: int

    @property
    def total_nano(self) -> int:
        return self.net_nano + self.tax_nano


def rate_period(
    segments: Sequence[Segment], *, seconds: int, currency: str, tax: Tax, adjustments: Sequence[Adjustment] = ()
) -> Rated:
    """The lines of a period of `seconds`, whose segments follow each other."""
    lines = [*_usage_lines(segments), *_tier_lines(segments), *_discount_lines(segments)]
    lines += _commitment_lines(segments, seconds=seconds, used_nano=_sum(lines))
    lines += _minimum_lines(segments, seconds=seconds, so_far_nano=_sum(lines))
    lines += [_line(LineKind.ADJUSTMENT, each.key, each.text, each.nano) for each in adjustments]
    return _document(lines, currency=currency, tax=tax)


def difference(new: Rated, old: Rated) -> Rated:
    """What a note must say after `old` was issued and `new` is right: line by line, positive = owed in addition."""
    before = {line.key: line for line in old.lines}
    after = {line.key: line for line in new.lines}
    changed = [_changed(after.get(key), before.get(key)) for key in dict.fromkeys([*after, *before])]
    return Rated(
        currency=new.currency,
        lines=tuple(line for line in changed if line.nano or line.exact_nano),
        net_nano=new.net_nano - old.net_nano,
        tax_nano=new.tax_nano - old.tax_nano,
    )


def rerate(usage: Iterable[Usage], *, units: Mapping[tuple[str, str, Meter], int]) -> int:
    """How many nano-units more the usage costs with other unit prices.

    By (model, class, meter), else by (model, "", meter). What the list does not price keeps its own price.
    """
    total = 0
    for each in usage:
        unit = units.get((each.model, each.service_class, each.meter), units.get((each.model, "", each.meter)))
        total += 0 if unit is None else each.tokens * (unit - each.unit_nano)
    return total


def _usage_lines(segments: Sequence[Segment]) -> list[Line]:
    totals: dict[tuple[str, str, int, str], Usage] = {}
    for each in (usage for segment in segments for usage in segment.usage):
        key = (each.model, each.service_class, _METERS[each.meter], each.price_id)
        known = totals.get(key)
        totals[key] = each if known is None else replace(known, tokens=known.tokens + each.tokens)
    return [
        Line(
            key=f"usage:{each.model}:{each.service_class}:{each.meter}:{each.price_id}",
            kind=LineKind.USAGE,
            text=f"{each.model}, {each.service_class}, {each.meter} tokens at {_plain(each.unit_nano)} per million",
            tokens=each.tokens,
            unit_nano=each.unit_nano,
            exact_nano=each.nano,
            nano=0,
        )
        for _, each in sorted(totals.items())
    ]


def _tier_lines(segments: Sequence[Segment]) -> list[Line]:
    """One line for each tier; a period's tokens are counted through its segments."""
    seen: dict[tuple[str, Meter], int] = {}
    off: dict[tuple[str, Meter, Tier], int] = {}
    tokens: dict[tuple[str, Meter, Tier], int] = {}
    for segment in segments:
        for each in sorted(segment.usage, key=lambda usage: (usage.model, usage.price_id, usage.service_class)):
            place = (each.model, each.meter)
            start = seen.get(place, 0)
            seen[place] = start + each.tokens
            tiers = tiers_of(segment.terms.tiers, model=each.model, meter=each.meter)
            for tier, count in discounted(tiers, start=start, tokens=each.tokens):
                key = (*place, tier)
                off[key] = off.get(key, 0) + part_of(count * each.unit_nano, ppm=tier.discount_ppm)
                tokens[key] = tokens.get(key, 0) + count
    return [
        replace(
            _line(
                LineKind.TIER,
                f"{model}:{meter}:{tier.above_tokens}:{tier.discount_ppm}",
                f"{model}, {meter} tokens above {tier.above_tokens:,}: {_percent(tier.discount_ppm)} % off",
                -nano,
            ),
            tokens=tokens[model, meter, tier],
        )
        for (model, meter, tier), nano in off.items()
    ]


def _discount_lines(segments: Sequence[Segment]) -> list[Line]:
    """Of what usage costs after its tiers, each segment by its own terms."""
    off: dict[int, int] = {}
    before = 0
    for number in range(1, len(segments) + 1):
        until_now = _sum(_usage_lines(segments[:number])) + _sum(_tier_lines(segments[:number]))
        ppm = segments[number - 1].terms.discount_ppm
        off[ppm] = off.get(ppm, 0) + part_of(until_now - before, ppm=ppm)
        before = until_now
    return [
        _line(LineKind.DISCOUNT, str(ppm), f"Discount: {_percent(ppm)} % of usage", -nano)
        for ppm, nano in off.items()
        if nano
    ]


def _commitment_lines(segments: Sequence[Segment], *, seconds: int, used_nano: int) -> list[Line]:
    fee = covered = 0
    for segment in segments:
        fee += for_seconds(segment.terms.commitment_fee_nano, seconds=segment.seconds, of_seconds=seconds)
        covered += for_seconds(segment.terms.commitment_nano, seconds=segment.seconds, of_seconds=seconds)
    covered = max(0, min(covered, used_nano))
    lines = []
    if fee:
        lines.append(_line(LineKind.FEE, "", "Commitment", fee))
    if covered:
        lines.append(_line(LineKind.COVERED, "", "Usage covered by the commitment", -covered))
    return lines


def _minimum_lines(segments: Sequence[Segment], *, seconds: int, so_far_nano: int) -> list[Line]:
    minimum = sum(
        for_seconds(segment.terms.minimum_nano, seconds=segment.seconds, of_seconds=seconds) for segment in segments
    )
    if minimum <= so_far_nano:
        return []
    return [_line(LineKind.MINIMUM, "", "Up to the minimum of the contract", minimum - so_far_nano)]


def _document(lines: Sequence[Line], *, currency: str, tax: Tax) -> Rated:
    payable = [replace(line, nano=round_to_minor(line.exact_nano, currency=currency)) for line in lines]
    net = round_to_minor(_sum(lines), currency=currency)
    rest = net - sum(line.nano for line in payable)
    if rest:
        line = _line(LineKind.ROUNDING, "", "Rounding: the sum is rounded once, lines each by themselves", 0)
        payable.append(replace(line, nano=rest))
    return Rated(currency=currency, lines=tuple(payable), net_nano=net, tax_nano=tax.on(net, currency=currency))


def _changed(new: Line | None, old: Line | None) -> Line:
    shown = new or old
    assert shown is not None
    if old is None:
        return shown
    return replace(
        shown,
        tokens=None if shown.tokens is None else ((new.tokens or 0) if new else 0) - (old.tokens or 0),
        exact_nano=(new.exact_nano if new else 0) - old.exact_nano,
        nano=(new.nano if new else 0) - old.nano,
    )


def _line(kind: LineKind, key: str, text: str, exact_nano: int) -> Line:
    return Line(key=f"{kind}:{key}", kind=kind, text=text, tokens=None, unit_nano=None, exact_nano=exact_nano, nano=0)


def _sum(lines: Iterable[Line]) -> int:
    return sum(line.exact_nano for line in lines)


def _percent(ppm: int) -> str:
    return f"{ppm // 10_000}.{ppm % 10_000:04d}".rstrip("0").rstrip(".")


def _plain(unit_nano: int) -> str:
    return f"{per_million(unit_nano):f}"
