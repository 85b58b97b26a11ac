"""Work in the background with a claim in PostgreSQL: asked for once, run by one, tried again, seen in the admin.

Called by the beat's tasks and by the admin, which may not sign. Invariants: of one kind and subject one job is open at
a time; a claim is a lease, so what a killed process left is run again by whoever comes next; handlers are idempotent,
so twice does no harm; a failure is kept with its reason, and tried a bounded number of times.
"""

import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction
from django.db.models import Q

from billing.models import BillingJob, JobKind, JobState

LEASE = timedelta(minutes=6)  # longer than a task may live
ATTEMPTS_MAX = 5
BACKOFF = timedelta(minutes=1)  # doubled each time
KEPT_FOR = timedelta(days=90)
RESULT_MAX = 2_000

Progress = Callable[[str], None]
Handler = Callable[[BillingJob, Progress], str]  # what came of it, in words; JobFailed and any store's error: again

log = logging.getLogger("weir.billing")


class JobFailed(RuntimeError):
    """It cannot be done now, and may be later."""


def ask(*, kind: JobKind, subject: str = "", actor: str, now: datetime) -> BillingJob:
    """The open job of this kind and subject, made where there is none."""
    open_jobs = BillingJob.objects.filter(kind=kind, subject=subject, state__in=(JobState.WAITING, JobState.RUNNING))
    for _ in range(2):
        found = open_jobs.first()
        if found is not None:
            return found
        try:
            with transaction.atomic():
                return BillingJob.objects.create(kind=kind, subject=subject, asked_by=actor, asked_at=now, due_at=now)
        except IntegrityError:
            continue  # somebody asked at the same moment
    return open_jobs.get()


def run_jobs(
    handlers: Mapping[str, Handler], *, owner: str, clock: Callable[[], datetime], errors: tuple[type[Exception], ...]
) -> list[BillingJob]:
    """Run what is due, one after the other; each as it ended. After one of `errors` a job is tried again."""
    done: list[BillingJob] = []
    while (job := _claim(handlers, owner=owner, now=clock())) is not None:
        done.append(_run(job, handlers[job.kind], owner=owner, clock=clock, errors=errors))
    return done


def forget_old(*, now: datetime) -> int:
    """Drop jobs that ended long ago; how many."""
    ended = BillingJob.objects.filter(state__in=(JobState.DONE, JobState.FAILED), finished_at__lt=now - KEPT_FOR)
    return ended.delete()[0]


def _claim(handlers: Mapping[str, Handler], *, owner: str, now: datetime) -> BillingJob | None:
    with transaction.atomic():
        free = Q(state=JobState.WAITING, due_at__lte=now) | Q(state=JobState.RUNNING, claimed_until__lt=now)
        due = BillingJob.objects.select_for_update(skip_locked=True).filter(free, kind__in=list(handlers))
        job = due.order_by("due_at").first()
        if job is None:
            return None
        job.state, job.claimed_by, job.claimed_until = JobState.RUNNING, owner, now + LEASE
        job.attempts += 1
        job.save(update_fields=["state", "claimed_by", "claimed_until", "attempts"])
        return job


def _run(
    job: BillingJob, handler: Handler, *, owner: str, clock: Callable[[], datetime], errors: tuple[type[Exception], ...]
) -> BillingJob:
    mine = BillingJob.objects.filter(pk=job.pk, state=JobState.RUNNING, claimed_by=owner, attempts=job.attempts)

    def progress(text: str) -> None:
        """So far; and the lease goes on from now."""
        mine.update(progress=text[:200], claimed_until=clock() + LEASE)

    failures: tuple[type[Exception], ...] = (JobFailed, *errors)
    try:
        told = handler(job, progress)
    except failures as error:
        log.warning("job %s failed for the %d. time: %s", job, job.attempts, error)
        over = job.attempts >= ATTEMPTS_MAX
        mine.update(
            state=JobState.FAILED if over else JobState.WAITING,
            result=str(error)[:RESULT_MAX],
            due_at=clock() + BACKOFF * 2 ** (job.attempts - 1),
            finished_at=clock() if over else None,
        )
    else:
        mine.update(state=JobState.DONE, result=told[:RESULT_MAX], finished_at=clock())
    job.refresh_from_db()
    return job
