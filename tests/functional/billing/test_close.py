"""The close on real PostgreSQL, real chDB and real Valkey: no gap no waiver, every gap named, corrections on top."""

import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import StringIO
from itertools import pairwise
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from billing.closing.close import (
    CloseBlocked,
    CloseRefused,
    check_period,
    correct_period,
    latest_revision,
    open_periods,
    seal_period,
    unexplained_tokens,
    waive_gaps,
)
from billing.closing.watermark import DeadLetter
from billing.invoicing.drill import requests_of_line
from billing.invoicing.issue import issue_document
from billing.models import BillingJob, BillingPeriod, BillingProfile, Issuer, PeriodUsage
from billing.rating.prices import Meter
from billing.selectors import price_card
from billing.services import publish_prices
from billing.tasks import close_due, run_billing_jobs
from contracts.tokens import TokenCounts
from tenants.models import Tenant
from tests.functional.billing.months import DONE, END, LARGE, NOW, START, Books

pytestmark = pytest.mark.django_db


def kinds(found: CloseBlocked) -> set[str]:
    return {gap.kind for gap in found.gaps}


class TestOpenPeriods:
    def test_follow_each_other_through_a_change_of_zone(self, books: Books) -> None:
        assert [each.month for each in open_periods(tenant_id=books.tenant.pk, now=NOW)] == ["2026-11", "2026-12"]
        Tenant.objects.filter(pk=books.tenant.pk).update(timezone="America/New_York")
        periods = open_periods(tenant_id=books.tenant.pk, now=NOW + timedelta(days=45))
        assert [each.zone for each in periods] == ["Asia/Kathmandu", "Asia/Kathmandu", "America/New_York"]
        assert all(one.ends_at == two.starts_at for one, two in pairwise(periods))
        assert periods[2].ends_at == datetime(2027, 2, 1, 5, tzinfo=UTC)
        assert open_periods(tenant_id=books.tenant.pk, now=NOW + timedelta(days=45)) == periods

    def test_end_with_the_month_in_which_the_tenant_was_closed(self, books: Books) -> None:
        Tenant.objects.filter(pk=books.tenant.pk).update(closed_at=END - timedelta(days=1), state="closed")
        assert [each.month for each in open_periods(tenant_id=books.tenant.pk, now=NOW)] == ["2026-11"]

    def test_are_of_a_tenant_that_is_there(self) -> None:
        with pytest.raises(CloseRefused):
            open_periods(tenant_id=uuid.uuid4(), now=NOW)


class TestSeal:
    def test_takes_exactly_the_period_of_the_tenant_s_zone(self, books: Books, november: BillingPeriod) -> None:
        books.use(START)
        books.use(END - timedelta(milliseconds=1))
        for outside in (START - timedelta(milliseconds=1), END):
            books.use(outside)
        sealed = seal_period(november, books.evidence(), actor="user:ada", now=NOW)
        assert (sealed.state, sealed.sealed_by, unexplained_tokens(sealed)) == ("sealed", "user:ada", 0)
        tokens = dict(PeriodUsage.objects.values_list("meter", "tokens"))
        assert tokens == {"input": 800, "cached": 1_200, "output": 200}
        assert sum(hour.requests for hour in sealed.hours.all()) == 2
        cost = sum(hour.cost for hour in sealed.hours.all())
        assert cost == 2 * Decimal("0.00086")

    def test_is_a_no_op_the_second_time(self, books: Books, november: BillingPeriod) -> None:
        books.use(START)
        seal_period(november, books.evidence(), actor="user:ada", now=NOW)
        again = seal_period(november, books.evidence(), actor="user:bob", now=NOW + timedelta(days=1))
        assert (again.sealed_by, again.sealed_at) == ("user:ada", NOW)
        assert PeriodUsage.objects.count() == 3

    def test_seals_a_period_without_usage(self, books: Books, november: BillingPeriod) -> None:
        assert seal_period(november, books.evidence(attempt_logs=[]), actor="user:ada", now=NOW).state == "sealed"

    def test_waits_for_the_period_before(self, books: Books, november: BillingPeriod) -> None:
        december = open_periods(tenant_id=books.tenant.pk, now=NOW)[1]
        with pytest.raises(CloseRefused, match="earlier"):
            seal_period(december, books.evidence(), actor="user:ada", now=NOW + timedelta(days=60))

    def test_is_blocked_until_it_is_over_and_taken_which_no_waiver_changes(
        self, books: Books, november: BillingPeriod
    ) -> None:
        behind = replace(DONE, low_ms=round(END.timestamp() * 1_000) - 1)
        with pytest.raises(CloseBlocked) as lag:
            seal_period(november, books.evidence(behind), actor="user:ada", now=NOW)
        with pytest.raises(CloseBlocked) as early:
            seal_period(november, books.evidence(), actor="user:ada", now=END - timedelta(seconds=1))
        assert (kinds(lag.value), kinds(early.value)) == ({"lag"}, {"not_over"})
        with pytest.raises(CloseRefused, match="waited for"):
            waive_gaps(november, reason="hurry", actor="user:ada", now=NOW)

    def test_merges_one_price_on_two_cards(self, books: Books, november: BillingPeriod) -> None:
        books.use(START)
        later = START + timedelta(days=10)
        publish_prices(
            model="m", prices={Meter.OUTPUT: Decimal(5)}, currency="USD", at=later, actor="user:ada",
            approver="user:bob",
        )  # fmt: skip
        card = price_card(tenant_id=str(books.tenant.pk), model="m", at_ms=round(later.timestamp() * 1_000))
        assert card is not None
        books.card = card
        books.use(later)
        seal_period(november, books.evidence(), actor="user:ada", now=NOW)
        lines = PeriodUsage.objects.filter(meter="output").values_list("unit_nano", "tokens").order_by("unit_nano")
        assert list(lines) == [(4_000, 100), (5_000, 100)]
        assert PeriodUsage.objects.get(meter="input").tokens == 800


class TestGaps:
    @pytest.mark.parametrize(
        ("of", "kind", "detail", "tokens"),
        [
            ("clickhouse engine", "ledger", "in ClickHouse, not in the ledger", 1_100),
            ("ledger engine", "ledger", "in the ledger, not in ClickHouse", 1_100),
            ("clickhouse ledger", "engine", "in no attempt log", 1_100),
            ("engine", "unbilled", "no book has the request", 1_100),
        ],
    )
    def test_name_the_request_and_its_tokens(
        self, books: Books, november: BillingPeriod, of: str, kind: str, detail: str, tokens: int
    ) -> None:
        books.use(START + timedelta(hours=1))
        odd = books.use(START + timedelta(hours=1), of=of)
        with pytest.raises(CloseBlocked) as blocked:
            seal_period(november, books.evidence(), actor="user:ada", now=NOW)
        mine = [gap for gap in blocked.value.gaps if gap.kind == kind]
        assert [(gap.request_id, gap.tokens) for gap in mine] == [(odd.request_id, tokens)]
        assert detail in mine[0].detail
        assert november.gaps.filter(kind=kind, request_id=odd.request_id).exists()
        assert BillingPeriod.objects.get(pk=november.pk).state == "draft"

    def test_name_counts_that_differ_in_any_book(self, books: Books, november: BillingPeriod) -> None:
        record = books.record(START)
        other = replace(record, counts=TokenCounts(prompt=1_000, cached=600, completion=101))
        books.write(record, of="clickhouse")
        books.write(other, of="ledger engine")
        found = check_period(november, books.evidence(), now=NOW)
        assert {(gap.kind, gap.tokens) for gap in found.gaps} == {("ledger", 1), ("engine", 1)}

    def test_explain_ends_that_the_queue_made_itself(self, books: Books, november: BillingPeriod) -> None:
        books.use(START, of="clickhouse ledger", worker_id="")  # never claimed
        books.records.clear()
        reaped = replace(books.record(START), outcome="failed")
        books.write(reaped, of="clickhouse ledger")
        cancelled = replace(books.record(START), outcome="cancelled")
        books.write(cancelled, of="clickhouse ledger")
        books.write(replace(cancelled, counts=TokenCounts(prompt=1_000, cached=600, completion=150)), of="engine")
        assert check_period(november, books.evidence(), now=NOW).gaps == ()

    def test_show_an_attempt_that_was_run_again_as_no_gap(self, books: Books, november: BillingPeriod) -> None:
        second = replace(books.record(START), attempt=2)
        books.write(replace(second, attempt=1, outcome="failed"), of="engine")
        books.write(second, of="clickhouse ledger engine")
        assert check_period(november, books.evidence(), now=NOW).gaps == ()

    def test_know_a_worker_s_clock_that_ran_ahead_of_the_edge(self, books: Books, november: BillingPeriod) -> None:
        ended = books.use(END + timedelta(milliseconds=5), of="clickhouse ledger")
        books.write(replace(ended, billed_at_ms=ended.billed_at_ms - 10), of="engine")
        assert check_period(november, books.evidence(), now=NOW).gaps == ()

    def test_hold_prices_to_the_price_book(self, books: Books, november: BillingPeriod) -> None:
        books.card = replace(books.card, output_nano=3_999)
        books.use(START)
        [gap] = check_period(november, books.evidence(), now=NOW).gaps
        assert (gap.kind, gap.tokens) == ("price", 1_100)
        assert "charged were 3999 nano" in gap.detail

    def test_tell_of_another_currency(self, books: Books, november: BillingPeriod) -> None:
        books.card = replace(books.card, currency="EUR")
        books.use(START)
        [gap] = check_period(november, books.evidence(), now=NOW).gaps
        assert gap.kind == "currency"

    def test_are_dead_letters_of_this_tenant_or_of_nobody_known(self, books: Books, november: BillingPeriod) -> None:
        def letter(tenant_id: str, at: datetime) -> DeadLetter:
            return DeadLetter(
                pool="p", entry_id="1-0", ended_at_ms=round(at.timestamp() * 1_000), tenant_id=tenant_id,
                request_id="r", reason="unknown tenant",
            )  # fmt: skip

        mine = str(books.tenant.pk)
        letters = (letter(mine, START), letter("", START), letter(str(uuid.uuid4()), START), letter(mine, END))
        found = check_period(november, books.evidence(replace(DONE, letters=letters)), now=NOW)
        assert [gap.kind for gap in found.gaps] == ["dead_letter"] * 2


class TestWaiver:
    def test_is_signed_with_a_reason_for_exactly_these_gaps(self, books: Books, november: BillingPeriod) -> None:
        books.use(START, of="clickhouse ledger")
        check_period(november, books.evidence(), now=NOW)
        with pytest.raises(CloseRefused, match="reason"):
            waive_gaps(november, reason=" ", actor="user:ada", now=NOW)
        waive_gaps(november, reason="The disk of w1 was lost on 3 November.", actor="user:ada", now=NOW)
        books.use(START, of="clickhouse ledger")
        with pytest.raises(CloseBlocked):
            seal_period(november, books.evidence(), actor="user:ada", now=NOW)
        waive_gaps(november, reason="Both of the same disk.", actor="user:bob", now=NOW)
        sealed = seal_period(november, books.evidence(), actor="user:ada", now=NOW)
        assert sealed.state == "sealed"
        assert unexplained_tokens(sealed) == 2_200
        assert {each.signed_by for each in sealed.waivers.all()} == {"user:bob", "user:ada"}

    def test_is_for_a_draft_that_has_gaps(self, books: Books, november: BillingPeriod) -> None:
        with pytest.raises(CloseRefused, match="checked draft"):
            waive_gaps(november, reason="none", actor="user:ada", now=NOW)


class TestCorrection:
    def test_is_a_revision_of_the_period_in_which_late_usage_ended(self, books: Books, november: BillingPeriod) -> None:
        books.use(START)
        seal_period(november, books.evidence(), actor="user:ada", now=NOW)
        assert correct_period(november, books.evidence(), now=NOW) is None
        books.use(START + timedelta(hours=9))
        assert correct_period(november, books.evidence(), now=NOW) == 2
        assert correct_period(november, books.evidence(), now=NOW) is None
        tokens = PeriodUsage.objects.filter(meter="output").values_list("revision", "tokens").order_by("revision")
        assert list(tokens) == [(1, 100), (2, 200)]
        assert latest_revision(november) == 2

    def test_is_blocked_by_a_gap_and_of_sealed_periods_only(self, books: Books, november: BillingPeriod) -> None:
        with pytest.raises(CloseRefused, match="sealed"):
            correct_period(november, books.evidence(), now=NOW)
        seal_period(november, books.evidence(), actor="user:ada", now=NOW)
        books.use(START, of="clickhouse engine")
        with pytest.raises(CloseBlocked):
            correct_period(november, books.evidence(), now=NOW)


class TestDatabase:
    def test_freezes_what_is_sealed_and_allows_no_other_step(self, books: Books, november: BillingPeriod) -> None:
        books.use(START)
        refused: list[Callable[[], object]] = [
            lambda: BillingPeriod.objects.filter(pk=november.pk).update(state="issued"),
            lambda: BillingPeriod.objects.filter(pk=november.pk).update(ends_at=NOW),
            lambda: BillingPeriod.objects.filter(pk=november.pk).delete(),
        ]
        for change in refused:
            with pytest.raises(IntegrityError), transaction.atomic():
                change()
        seal_period(november, books.evidence(), actor="user:ada", now=NOW)
        refused = [
            lambda: BillingPeriod.objects.filter(pk=november.pk).update(state="draft"),
            lambda: BillingPeriod.objects.filter(pk=november.pk).update(sealed_by="user:eve"),
            lambda: PeriodUsage.objects.update(tokens=1),
            lambda: november.hours.all().delete(),
        ]
        for change in refused:
            with pytest.raises(IntegrityError), transaction.atomic():
                change()

    def test_refuses_periods_that_overlap(self, books: Books, november: BillingPeriod) -> None:
        with pytest.raises(IntegrityError, match="period_never_overlaps"), transaction.atomic():
            BillingPeriod.objects.create(
                tenant=books.tenant, month="2026-10", zone="UTC", currency="USD",
                starts_at=START - timedelta(days=31), ends_at=START + timedelta(seconds=1),
            )  # fmt: skip


@pytest.fixture
def wired_books(books: Books, monkeypatch: pytest.MonkeyPatch) -> Books:
    """Command and admin find these books: chDB has one owner in a process, and the test is it."""
    for module in ("billing.admin.closing", "billing.management.commands.close_period", "billing.tasks"):
        monkeypatch.setattr(f"{module}.gather_evidence", lambda **kwargs: books.evidence())
        monkeypatch.setattr(f"{module}.timezone.now", lambda: NOW)
    return books


class TestCommand:
    def run(self, *words: str) -> str:
        out = StringIO()
        try:
            call_command("close_period", "--tenant", "acme", *words, stdout=out)
        except CommandError as error:
            return f"{out.getvalue()}{error}"
        return out.getvalue()

    def test_seals_what_is_over_and_finds_late_usage(self, wired_books: Books) -> None:
        wired_books.use(START)
        assert "acme 2026-11: sealed" in self.run()
        assert "acme 2026-11: as sealed" in self.run()
        wired_books.use(START)
        assert "acme 2026-11: revision 2" in self.run()
        assert "not_over" in self.run("--month", "2026-12")

    def test_refuses_what_is_no_month_and_says_where_there_is_nothing_to_do(self, wired_books: Books) -> None:
        for wrong in ("2026-99", "garbage", "2026-1", "2026", ""):
            assert self.run("--month", wrong) == "--month is like 2026-11"
        assert self.run("--month", "2031-01") == "nothing to close: no period 2031-01\n"

    def test_shows_each_gap_and_takes_a_waiver(self, wired_books: Books) -> None:
        odd = wired_books.use(START, of="clickhouse ledger")
        shown = self.run()
        assert f"engine {odd.request_id}: billed, but attempt 1 is in no attempt log (1100 tokens)" in shown
        assert "1 periods are not closed" in shown
        assert "--waive is for one" in self.run("--waive", "lost")
        assert "sealed" in self.run("--month", "2026-11", "--waive", "The disk was lost.", "--by", "user:ada")
        with pytest.raises(CommandError, match="nobody"):
            call_command("close_period", "--tenant", "nobody")


class TestAdmin:
    def test_compares_waives_and_seals_by_post_alone(
        self, wired_books: Books, november: BillingPeriod, settings: Settings, tmp_path: Path
    ) -> None:
        settings.STATIC_ROOT = tmp_path
        ada = Client()
        ada.force_login(User.objects.create_superuser("ada", password="only-a-test"))
        wired_books.use(START, of="clickhouse ledger")
        steps = {
            name: reverse(f"admin:billing_billingperiod_{name}", args=[november.pk])
            for name in ("compare", "waive", "seal", "correct")
        }
        page = reverse("admin:billing_billingperiod_change", args=[november.pk])
        assert all(ada.get(address).status_code == 200 for address in steps.values())
        ada.post(steps["seal"])
        assert run_billing_jobs() == 1
        assert BillingJob.objects.get().result.startswith("not closed: 1 gaps")
        assert b"in no attempt log" in ada.get(page).content
        assert BillingPeriod.objects.get(pk=november.pk).state == "draft"
        ada.post(steps["waive"], {"reason": "The disk was lost."})
        ada.post(steps["seal"])
        ada.post(steps["seal"])
        assert run_billing_jobs() == 1
        job = reverse("admin:billing_billingjob_change", args=[BillingJob.objects.get(result__startswith="sealed").pk])
        assert b"sealed by user:ada" in ada.get(job).content
        sealed = BillingPeriod.objects.get(pk=november.pk)
        assert (sealed.state, sealed.sealed_by) == ("sealed", "user:ada")
        assert b"The disk was lost." in ada.get(page).content
        assert b"1,100" in ada.get(reverse("admin:billing_billingperiod_changelist")).content
        clerk = Client()
        clerk.force_login(User.objects.create_user("clerk", password="only-a-test", is_staff=True))
        assert clerk.post(steps["correct"]).status_code in (302, 403)


class TestJob:
    def test_seals_a_day_after_the_end_what_has_no_gaps(
        self, wired_books: Books, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("billing.tasks.gather_evidence", lambda: wired_books.evidence(replace(DONE, low_ms=2**53)))
        wired_books.use(START)
        for later, sealed in ((timedelta(hours=23), 0), (timedelta(hours=24), 1), (timedelta(hours=25), 0)):
            monkeypatch.setattr("billing.tasks.timezone.now", lambda at=END + later: at)
            assert close_due() == sealed


class TestDrillDown:
    def test_finds_the_requests_behind_each_line(self, books: Books, november: BillingPeriod) -> None:
        used = {books.use(START + timedelta(minutes=n), counts=LARGE).request_id for n in range(3)}
        seal_period(november, books.evidence(), actor="user:ada", now=NOW)
        Issuer.objects.create(legal_name="Weir", country="US", street="1", postal_code="1", city="NYC")
        BillingProfile.objects.create(
            tenant=books.tenant, legal_name="Acme", country="NP", street="1", postal_code="1", city="Kathmandu"
        )
        made = issue_document(period_id=november.pk, actor="user:ada", now=NOW)
        assert made is not None
        lines = list(made.lines.all())
        assert [(line.tokens, line.exact) for line in lines] == [
            (1_200_000, Decimal("1.2")), (1_800_000, Decimal("0.18")), (300_000, Decimal("1.2")),
        ]  # fmt: skip
        for line in lines:
            parts = list(requests_of_line(line, reader=books.clickhouse))
            assert {part.request_id for part in parts} == used
            assert sum(part.tokens for part in parts) == line.tokens
            assert sum(part.cost_nano for part in parts) == line.exact * 10**9
