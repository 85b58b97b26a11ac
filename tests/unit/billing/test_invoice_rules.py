"""Known values: a contract rated by hand, tax by country, the order in which credit burns, what a form may say."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from billing.rating.credits import Remaining, plan_burn
from billing.rating.invoice import Adjustment, LineKind, Segment, Usage, difference, rate_period
from billing.rating.periods import Month
from billing.rating.prices import Meter
from billing.rating.rounding import div_half_even, minor_digits, round_to_minor
from billing.rating.tax import Tax, TaxUndecided, decide_tax
from billing.rating.terms import Terms, TermsError, Tier, read_tiers

UNIT = 10**9
VAT = Tax(category="S", rate_ppm=190_000, note="")
AT = datetime(2027, 1, 1, tzinfo=UTC)


def usage(tokens: int, *, meter: Meter = Meter.OUTPUT, unit_nano: int = 2_000, price_id: str = "p") -> Usage:
    return Usage(
        model="m", service_class="interactive", meter=meter, price_id=price_id, unit_nano=unit_nano, tokens=tokens
    )


class TestRatePeriod:
    def test_is_what_a_hand_computes(self) -> None:
        tier = Tier(model="", meter=Meter.OUTPUT, above_tokens=10_000_000, discount_ppm=250_000)
        terms = Terms(tiers=(tier,), discount_ppm=100_000, commitment_nano=10 * UNIT, commitment_fee_nano=9 * UNIT)
        month = Segment(terms=terms, seconds=100, usage=(usage(20_000_000), usage(1_000_001, meter=Meter.INPUT)))
        rated = rate_period([month], seconds=100, currency="EUR", tax=VAT)
        amounts = {line.kind: line.nano for line in rated.lines if line.kind is not LineKind.USAGE}
        assert [line.nano for line in rated.lines if line.kind is LineKind.USAGE] == [2 * UNIT, 40 * UNIT]
        # 42.000002; a quarter off 20.00; a tenth off 37.000002; ten covered for nine.
        assert amounts[LineKind.TIER] == -5 * UNIT
        assert amounts[LineKind.DISCOUNT] == -3_700_000_000
        assert (amounts[LineKind.FEE], amounts[LineKind.COVERED]) == (9 * UNIT, -10 * UNIT)
        assert rated.net_nano == 32_300_000_000
        assert rated.tax_nano == 6_140_000_000  # 6.137 rounded
        assert rated.total_nano == 38_440_000_000

    def test_splits_a_month_with_a_price_change_into_two_lines(self) -> None:
        month = Segment(terms=Terms(), seconds=1, usage=(usage(10), usage(10, unit_nano=3_000, price_id="q")))
        lines = rate_period([month], seconds=1, currency="EUR", tax=VAT).lines
        assert [(line.tokens, line.unit_nano, line.exact_nano) for line in lines if line.tokens] == [
            (10, 2_000, 20_000),
            (10, 3_000, 30_000),
        ]

    def test_prints_what_rounding_line_by_line_leaves(self) -> None:
        halves = tuple(usage(3, unit_nano=1_500_000, price_id=name) for name in "abcd")  # 0.0045 each, 0.018 together
        rated = rate_period([Segment(terms=Terms(), seconds=1, usage=halves)], seconds=1, currency="EUR", tax=VAT)
        assert rated.net_nano == 20_000_000
        assert [line.nano for line in rated.lines if line.kind is LineKind.ROUNDING] == [20_000_000]

    def test_charges_a_minimum_by_the_second(self) -> None:
        terms = Terms(minimum_nano=30 * UNIT)
        segments = [Segment(terms=Terms(), seconds=20, usage=()), Segment(terms=terms, seconds=10, usage=())]
        rated = rate_period(segments, seconds=30, currency="EUR", tax=VAT)
        assert [(line.kind, line.nano) for line in rated.lines] == [(LineKind.MINIMUM, 10 * UNIT)]

    def test_takes_an_adjustment_into_a_note(self) -> None:
        month = [Segment(terms=Terms(), seconds=1, usage=(usage(10**6),))]
        agreed = [Adjustment(key="1", text="Outage of 3 March", nano=-UNIT)]
        first = rate_period(month, seconds=1, currency="EUR", tax=VAT)
        note = difference(rate_period(month, seconds=1, currency="EUR", tax=VAT, adjustments=agreed), first)
        assert [(line.text, line.nano) for line in note.lines] == [("Outage of 3 March", -UNIT)]
        assert note.total_nano == -1_190_000_000


class TestRounding:
    def test_is_half_to_even(self) -> None:
        assert [div_half_even(n, 10) for n in (5, 15, 25, -5, -15, -26)] == [0, 2, 2, 0, -2, -3]

    def test_knows_currencies_without_cents(self) -> None:
        assert [minor_digits(currency) for currency in ("EUR", "JPY", "KWD")] == [2, 0, 3]
        assert round_to_minor(1_500_000_000, currency="JPY") == 2 * UNIT


class TestTax:
    RATES = {"DE": 190_000, "FR": 200_000, "GB": 200_000, "HK": 0}

    @pytest.mark.parametrize(
        ("buyer", "tax_id", "category", "rate"),
        [
            ("DE", "", "S", 190_000),
            ("DE", "DE1", "S", 190_000),
            ("FR", "", "S", 200_000),
            ("FR", "FR1", "AE", 0),
            ("GB", "GB1", "S", 200_000),
            ("US", "", "O", 0),
            ("HK", "", "Z", 0),
        ],
    )
    def test_is_decided_by_both_countries(self, buyer: str, tax_id: str, category: str, rate: int) -> None:
        tax = decide_tax(seller_country="DE", buyer_country=buyer, buyer_tax_id=tax_id, rates=self.RATES)
        assert (tax.category, tax.rate_ppm) == (category, rate)

    def test_is_never_left_out_where_a_rate_is_missing(self) -> None:
        for buyer in ("DE", "IT"):
            with pytest.raises(TaxUndecided, match=buyer):
                decide_tax(seller_country="DE", buyer_country=buyer, buyer_tax_id="", rates={})

    def test_prints_its_rate(self) -> None:
        assert [Tax(category="S", rate_ppm=ppm, note="").percent for ppm in (190_000, 77_000)] == ["19", "7.7"]


class TestPlanBurn:
    def test_takes_what_expires_first_then_gifts_then_the_oldest(self) -> None:
        def grant(number: int, *, days: int | None, paid: bool, left: int = 10) -> Remaining:
            return Remaining(
                grant_id=UUID(int=number), left_nano=left, paid=paid, granted_at=AT + timedelta(seconds=number),
                expires_at=None if days is None else AT + timedelta(days=days),
            )  # fmt: skip

        grants = [
            grant(1, days=None, paid=True),
            grant(2, days=None, paid=False),
            grant(3, days=9, paid=True),
            grant(4, days=9, paid=False),
            grant(5, days=0, paid=False),
            grant(6, days=1, paid=True, left=0),
        ]
        burns = plan_burn(grants, wanted_nano=35, at=AT)
        assert [(grant_id.int, nano) for grant_id, nano in burns] == [(4, 10), (3, 10), (2, 10), (1, 5)]
        assert sum(nano for _, nano in plan_burn(grants, wanted_nano=1_000, at=AT)) == 40


class TestReadTiers:
    @pytest.mark.parametrize(
        "wrong",
        [
            {},
            [1],
            [{"model": "", "meter": "input", "above_tokens": True, "discount_ppm": 1}],
            [{"model": "", "meter": "output", "above_tokens": 0, "discount_ppm": 1_000_001}],
            [{"model": "", "meter": "gold", "above_tokens": 0, "discount_ppm": 1}],
            [{"model": "", "meter": "input", "above_tokens": 1, "discount_ppm": 1}] * 2,
        ],
    )
    def test_refuses_what_cannot_be_charged(self, wrong: object) -> None:
        with pytest.raises(TermsError):
            read_tiers(wrong)


class TestMonth:
    def test_reads_and_prints_its_name(self) -> None:
        assert str(Month.read("2026-12").following) == "2027-01"
        with pytest.raises(ValueError, match="month must be"):
            Month.read("2026-13")
