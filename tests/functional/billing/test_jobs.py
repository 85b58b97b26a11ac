"""Jobs with a claim in PostgreSQL, and what they do: a job that died is run again, a reminder is given once."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.db import IntegrityError, connection, transaction

from billing.closing.close import seal_period
from billing.invoicing.dunning import dunning_state, remind_overdue
from billing.invoicing.issue import issue_document
from billing.invoicing.pay import amount_due, record_payment
from billing.jobs import ATTEMPTS_MAX, LEASE, JobFailed, Progress, ask, forget_old, run_jobs
from billing.management.composition import tell_of_dunning
from billing.models import BillingJob, BillingPeriod, BillingProfile, DunningStep, Invoice, Issuer, JobKind
from tenants.models import OutboxEvent
from tests.functional.billing.months import LARGE, NOW, START, Books

pytestmark = pytest.mark.django_db

AT = datetime(2026, 12, 1, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = AT

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def run(handler: Callable[[BillingJob, Progress], str], clock: Clock, *, owner: str = "one") -> list[BillingJob]:
    return run_jobs({JobKind.CLOSE.value: handler}, owner=owner, clock=clock, errors=(OSError,))


class TestJobs:
    def test_are_asked_for_once_while_open_and_say_what_came_of_them(self, clock: Clock) -> None:
        first = ask(kind=JobKind.CLOSE, subject="p", actor="user:ada", now=AT)
        assert ask(kind=JobKind.CLOSE, subject="p", actor="user:bob", now=AT) == first
        assert ask(kind=JobKind.CLOSE, subject="q", actor="user:bob", now=AT) != first
        seen = []

        def handler(job: BillingJob, progress: Progress) -> str:
            progress("half")
            seen.append((job.subject, BillingJob.objects.get(pk=job.pk).progress))
            return f"done {job.subject}"

        assert [job.result for job in run(handler, clock)] == ["done p", "done q"]
        assert seen == [("p", "half"), ("q", "half")]
        assert run(handler, clock) == []
        assert ask(kind=JobKind.CLOSE, subject="p", actor="user:ada", now=AT) != first

    def test_that_fail_wait_longer_each_time_and_end_with_their_reason(self, clock: Clock) -> None:
        ask(kind=JobKind.CLOSE, actor="user:ada", now=AT)

        def handler(job: BillingJob, progress: Progress) -> str:
            raise (JobFailed if job.attempts % 2 else OSError)(f"try {job.attempts}")

        waits = []
        while BillingJob.objects.get().state != "failed":
            due = BillingJob.objects.get().due_at
            waits.append(due - clock.now)
            clock.now = due
            assert [job.attempts for job in run(handler, clock)] == [len(waits)]
            assert run(handler, clock) == []
        assert waits == [timedelta(minutes=minutes) for minutes in (0, 1, 2, 4, 8)]
        job = BillingJob.objects.get()
        assert (job.attempts, job.result, job.finished_at) == (ATTEMPTS_MAX, "try 5", clock.now)

    def test_whose_process_died_are_run_again_when_their_lease_is_over(self, clock: Clock) -> None:
        ask(kind=JobKind.CLOSE, actor="user:ada", now=AT)

        def dies(job: BillingJob, progress: Progress) -> str:
            raise SystemExit  # as much of a kill as a test can take: nothing is written any more

        with pytest.raises(SystemExit):
            run(dies, clock)
        assert run(lambda job, progress: "done", clock, owner="two") == []
        clock.now += LEASE + timedelta(seconds=1)
        [job] = run(lambda job, progress: "done", clock, owner="two")
        assert (job.state, job.claimed_by, job.attempts) == ("done", "two", 2)

    def test_that_lost_their_lease_say_nothing_of_the_run_that_followed(self, clock: Clock) -> None:
        ask(kind=JobKind.CLOSE, actor="user:ada", now=AT)

        def slow(job: BillingJob, progress: Progress) -> str:
            clock.now += LEASE + timedelta(seconds=1)
            run(lambda job, progress: "by two", clock, owner="two")
            return "by one"

        run(slow, clock)
        assert BillingJob.objects.get().result == "by two"

    def test_are_forgotten_long_after(self, clock: Clock) -> None:
        ask(kind=JobKind.CLOSE, actor="user:ada", now=AT)
        run(lambda job, progress: "done", clock)
        assert forget_old(now=AT + timedelta(days=89)) == 0
        assert forget_old(now=AT + timedelta(days=91)) == 1


@pytest.fixture
def invoice(books: Books, november: BillingPeriod) -> Invoice:
    books.use(START, counts=LARGE)
    Issuer.objects.create(legal_name="Weir", country="US", street="1", postal_code="1", city="NYC")
    BillingProfile.objects.create(
        tenant=books.tenant, legal_name="Acme", country="NP", street="1", postal_code="1", city="Kathmandu"
    )
    seal_period(november, books.evidence(), actor="user:ada", now=NOW)
    made = issue_document(period_id=november.pk, actor="user:ada", now=NOW)
    assert made is not None
    return made


class TestReminders:
    def test_are_three_each_once_and_each_an_event(self, invoice: Invoice) -> None:
        told = []
        for days in range(-1, 60):
            at = invoice.due_at + timedelta(days=days)
            told += [(days, step.level) for step in remind_overdue(now=at, tell=tell_of_dunning)]
            assert remind_overdue(now=at, tell=tell_of_dunning) == []
        assert told == [(4, 1), (14, 2), (30, 3)]
        assert dunning_state(invoice, at=invoice.due_at) == "reminded_3"
        events = OutboxEvent.objects.filter(name="invoice.overdue")
        assert [event.body["after"]["level"] for event in events.order_by("id")] == [1, 2, 3]
        assert events[0].body["after"]["due"] == "0.86"
        with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
            DunningStep.objects.update(level=1)

    def test_end_with_the_payment(self, invoice: Invoice) -> None:
        late = invoice.due_at + timedelta(days=5)
        assert dunning_state(invoice, at=invoice.due_at) == "not_due"
        assert dunning_state(invoice, at=late) == "overdue"
        assert [step.due for step in remind_overdue(now=late, tell=tell_of_dunning)] == [Decimal("0.86")]
        record_payment(invoice_id=invoice.pk, key="bank-1", amount=amount_due(invoice), actor="a", at=late)
        assert remind_overdue(now=late + timedelta(days=60), tell=tell_of_dunning) == []
        invoice.refresh_from_db()
        assert dunning_state(invoice, at=late) == "settled"

    def test_are_shown_to_their_own_tenant_alone(self, invoice: Invoice) -> None:
        remind_overdue(now=invoice.due_at + timedelta(days=5), tell=tell_of_dunning)
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL ROLE weir_app")
            for tenant, seen in ((str(invoice.tenant_id), 1), ("00000000-0000-4000-8000-000000000000", 0)):
                cursor.execute("SELECT set_config('weir.tenant', %s, true)", [tenant])
                cursor.execute("SELECT count(*) FROM billing_dunningstep")
                assert cursor.fetchone() == (seen,)
            cursor.execute("RESET ROLE")
