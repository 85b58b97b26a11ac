"""Invoices for random prices, tiers, contracts, corrections and zones: money is conserved, months are whole."""

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

from hypothesis import given
from hypothesis import strategies as st

from billing.rating.invoice import Adjustment, LineKind, Rated, Segment, Usage, difference, rate_period, rerate
from billing.rating.periods import Month, Span, days_of, month_span
from billing.rating.prices import Meter
from billing.rating.rounding import div_half_even, minor_nano
from billing.rating.tax import Tax
from billing.rating.terms import Terms, Tier, discounted, tiers_of

MONTH_SECONDS = 30 * 86_400
MODELS = ("small", "large")
TAX = Tax(category="S", rate_ppm=190_000, note="")

tiers = st.lists(
    st.builds(
        Tier,
        model=st.sampled_from(("", *MODELS)),
        meter=st.sampled_from(Meter),
        above_tokens=st.integers(0, 2_000),
        discount_ppm=st.integers(0, 1_000_000),
    ),
    max_size=5,
    unique_by=lambda tier: (tier.model, tier.meter, tier.above_tokens),
).map(tuple)
amounts = st.integers(0, 10**12)
terms = st.builds(
    Terms,
    tiers=tiers,
    discount_ppm=st.integers(0, 1_000_000),
    commitment_nano=amounts,
    commitment_fee_nano=amounts,
    minimum_nano=amounts,
)


@st.composite
def usages(draw: st.DrawFn) -> tuple[Usage, ...]:
    """A price id has one model, class, meter and unit price."""
    found = []
    for number in range(draw(st.integers(0, 4))):
        found.append(
            Usage(
                model=draw(st.sampled_from(MODELS)),
                service_class="interactive",
                meter=draw(st.sampled_from(Meter)),
                price_id=f"price-{number}",
                unit_nano=draw(st.integers(0, 10**6)),
                tokens=draw(st.integers(0, 3_000)),
            )
        )
    return tuple(found)


@st.composite
def periods(draw: st.DrawFn) -> list[Segment]:
    """One or two contracts that share the month."""
    first = draw(st.sampled_from((MONTH_SECONDS, 10 * 86_400 + 1)))
    usage = draw(usages())
    segments = [Segment(terms=draw(terms), seconds=first, usage=usage)]
    if first < MONTH_SECONDS:
        later = tuple(
            Usage(
                model=each.model, service_class=each.service_class, meter=each.meter, price_id=each.price_id,
                unit_nano=each.unit_nano, tokens=draw(st.integers(0, 3_000)),
            )
            for each in usage
        )  # fmt: skip
        segments.append(Segment(terms=draw(terms), seconds=MONTH_SECONDS - first, usage=later))
    return segments


adjustments = st.lists(
    st.builds(Adjustment, key=st.uuids().map(str), text=st.just("agreed"), nano=st.integers(-(10**12), 10**12)),
    max_size=2,
    unique_by=lambda each: each.key,
)


def rate(segments: list[Segment], *, currency: str = "EUR", agreed: list[Adjustment] | None = None) -> Rated:
    return rate_period(segments, seconds=MONTH_SECONDS, currency=currency, tax=TAX, adjustments=agreed or [])


class TestRatePeriod:
    @given(periods(), st.sampled_from(("EUR", "JPY", "KWD")), adjustments)
    def test_makes_lines_that_sum_to_the_total_in_amounts_that_can_be_paid(
        self, segments: list[Segment], currency: str, agreed: list[Adjustment]
    ) -> None:
        rated = rate(segments, currency=currency, agreed=agreed)
        assert sum(line.nano for line in rated.lines) == rated.net_nano
        assert rated.total_nano == rated.net_nano + rated.tax_nano
        step = minor_nano(currency)
        assert all(amount % step == 0 for amount in (rated.tax_nano, *(line.nano for line in rated.lines)))
        exact = sum(line.exact_nano for line in rated.lines)
        assert abs(rated.net_nano - exact) * 2 <= step
        assert len({line.key for line in rated.lines}) == len(rated.lines)

    @given(periods())
    def test_charges_usage_at_the_unit_price_of_its_rows(self, segments: list[Segment]) -> None:
        used = sum(each.tokens * each.unit_nano for segment in segments for each in segment.usage)
        lines = rate(segments).lines
        assert sum(line.exact_nano for line in lines if line.kind is LineKind.USAGE) == used
        off = sum(line.exact_nano for line in lines if line.kind in (LineKind.TIER, LineKind.DISCOUNT))
        assert -used - 10 <= off <= 0  # each of at most ten roundings to a nano-unit

    @given(periods())
    def test_never_falls_below_the_minimum_nor_below_nothing(self, segments: list[Segment]) -> None:
        exact = sum(line.exact_nano for line in rate(segments).lines)
        least = sum(div_half_even(segment.terms.minimum_nano * segment.seconds, MONTH_SECONDS) for segment in segments)
        assert exact >= least - 10

    @given(periods(), adjustments)
    def test_is_a_no_op_the_second_time(self, segments: list[Segment], agreed: list[Adjustment]) -> None:
        again = difference(rate(segments, agreed=agreed), rate(list(segments), agreed=list(agreed)))
        assert (again.lines, again.net_nano, again.tax_nano) == ((), 0, 0)

    @given(periods(), usages(), adjustments)
    def test_conserves_money_through_corrections(
        self, segments: list[Segment], late: tuple[Usage, ...], agreed: list[Adjustment]
    ) -> None:
        """Invoice plus note is what one rating of everything would have said."""
        first = rate(segments)
        prices = {each.price_id: each for segment in segments for each in segment.usage}
        known = tuple(each for each in late if prices.get(each.price_id) is None)
        right = rate([Segment(terms=segments[0].terms, seconds=segments[0].seconds, usage=segments[0].usage + known),
                      *segments[1:]], agreed=agreed)  # fmt: skip
        note = difference(right, first)
        assert first.total_nano + note.total_nano == right.total_nano
        assert sum(line.nano for line in note.lines) == note.net_nano


class TestTiers:
    @given(tiers, st.sampled_from(MODELS), st.sampled_from(Meter), st.integers(0, 3_000), st.integers(0, 3_000))
    def test_give_each_token_to_one_tier_as_counting_them_does(
        self, given_tiers: tuple[Tier, ...], model: str, meter: Meter, start: int, tokens: int
    ) -> None:
        mine = tiers_of(given_tiers, model=model, meter=meter)
        counted: dict[Tier, int] = {}
        for token in range(start, start + tokens):
            reached = [tier for tier in mine if tier.above_tokens <= token]
            if reached:
                counted[reached[-1]] = counted.get(reached[-1], 0) + 1
        assert dict(discounted(mine, start=start, tokens=tokens)) == counted


class TestRerate:
    @given(usages())
    def test_by_the_same_list_gives_nothing(self, usage: tuple[Usage, ...]) -> None:
        assert rerate(usage, units={}) == 0
        by_price = [({(each.model, each.service_class, each.meter): each.unit_nano}, each) for each in usage]
        assert [rerate([each], units=units) for units, each in by_price] == [0] * len(usage)

    @given(usages(), st.integers(0, 10**6))
    def test_by_another_gives_the_difference_of_both_bills(self, usage: tuple[Usage, ...], unit: int) -> None:
        units = {(model, "", meter): unit for model in MODELS for meter in Meter}
        new = sum(each.tokens * unit for each in usage)
        assert rerate(usage, units=units) == new - sum(each.nano for each in usage)


ZONES = sorted(available_timezones() - {"localtime", "Factory"})
months = st.builds(Month, st.integers(1990, 2040), st.integers(1, 12))


class TestMonths:
    @given(st.sampled_from(ZONES), months)
    def test_are_exactly_their_days_in_every_zone(self, name: str, month: Month) -> None:
        zone = ZoneInfo(name)
        span = month_span(month, zone)
        days = days_of(span, zone)
        assert days[0][1].start == span.start
        assert days[-1][1].end == span.end
        assert [day.end for _, day in days[:-1]] == [day.start for _, day in days[1:]]
        assert sum(day.seconds for _, day in days) == span.seconds
        assert all((day.year, day.month) == (month.year, month.number) for day, _ in days)

    @given(st.lists(st.sampled_from(ZONES), min_size=2, max_size=4), months)
    def test_follow_each_other_when_the_zone_changes(self, names: list[str], month: Month) -> None:
        spans: list[Span] = []
        for name in names:
            spans.append(month_span(month, ZoneInfo(name), starts_at=spans[-1].end if spans else None))
            month = month.following
        assert all(one.end == two.start for one, two in pairwise(spans))
        assert all(26 * 86_400 < span.seconds < 34 * 86_400 for span in spans)

    @given(st.sampled_from(ZONES), st.integers(631_152_000, 2_200_000_000))
    def test_hold_each_instant_once(self, name: str, second: int) -> None:
        zone = ZoneInfo(name)
        at = datetime.fromtimestamp(second, tz=UTC)
        month = Month.of(at, zone)
        span = month_span(month, zone)
        days = [(day, each) for day, each in days_of(span, zone) if each.start <= at < each.end]
        assert [day for day, _ in days] == [at.astimezone(zone).date()]


class TestKnownMonths:
    def test_have_the_hours_of_their_zone(self) -> None:
        march = Month(2026, 3)
        york, kathmandu = ZoneInfo("America/New_York"), ZoneInfo("Asia/Kathmandu")
        days = {day: span.seconds for day, span in days_of(month_span(march, york), york)}
        assert days[date(2026, 3, 8)] == 23 * 3_600
        assert month_span(march, kathmandu).start == datetime(2026, 2, 28, 18, 15, tzinfo=UTC)
        apia = ZoneInfo("Pacific/Apia")
        assert date(2011, 12, 30) not in dict(days_of(month_span(Month(2011, 12), apia), apia))
        auckland = ZoneInfo("Pacific/Auckland")
        assert max(span.seconds for _, span in days_of(month_span(Month(2026, 4), auckland), auckland)) == 25 * 3_600
        moved = month_span(march, york, starts_at=month_span(Month(2026, 2), auckland).end)
        assert moved.start == datetime(2026, 2, 28, 11, tzinfo=UTC)
        assert moved.end == datetime(2026, 4, 1, 4, tzinfo=UTC)
        assert moved.end - moved.start > timedelta(days=31)
