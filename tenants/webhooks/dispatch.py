"""Claims due deliveries, sends them, writes down what came of it. Run by the beat's task in the Celery worker.

The queue is the table itself: a claim moves `next_attempt_at` on by a lease, in one short transaction, and counts the
try. Invariants: nothing is sent inside a transaction; a worker killed anywhere leaves a row that is due again when its
lease ends (so a receiver may see an id twice, and is told so); a late result of a lease that ended changes nothing; one
slow endpoint holds at most `PER_ENDPOINT` of the places, so that it delays nobody else.
"""

import logging
import random
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal
from django.db import connection, transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Coalesce
from django.utils import timezone

from stores.sealing import Unreadable
from tenants.webhooks import config, retries, selectors, services, signing
from tenants.webhooks.models import ATTEMPTS_KEPT, Attempt, Delivery, DeliveryState, DisabledReason, Endpoint
from tenants.webhooks.transport import Answer, Sender

LEASE = timedelta(seconds=60)  # more than an attempt can take
PLACES = 32
PER_ENDPOINT = 4
RUN_SECONDS = 30.0
_GONE = 410
_log = logging.getLogger(__name__)
_one_run = threading.Lock()

# Every endpoint's oldest due row first, then every endpoint's second, endpoints in random order: none is always last.
# Of an endpoint no more than the places it does not hold: a row whose lease is untouched is under way, for a pause is
# never as long as the lease to the microsecond.
_DUE = """
SELECT d.id FROM webhooks_endpoint e CROSS JOIN LATERAL (
    SELECT id, row_number() OVER (ORDER BY next_attempt_at) AS place FROM webhooks_delivery
    WHERE endpoint_id = e.id AND state = 'pending' AND next_attempt_at <= %(now)s
    ORDER BY next_attempt_at LIMIT greatest(0, %(each)s - (
        SELECT count(*) FROM webhooks_delivery
        WHERE endpoint_id = e.id AND state = 'pending' AND next_attempt_at > %(now)s
        AND next_attempt_at <= %(now)s + %(lease)s AND next_attempt_at = last_attempt_at + %(lease)s
    ))
) d WHERE e.enabled AND e.deleted_at IS NULL ORDER BY d.place, random() LIMIT %(most)s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One claimed try: everything that sending needs, so that no transaction is open meanwhile."""

    delivery_id: uuid.UUID
    endpoint_id: uuid.UUID
    tenant_id: uuid.UUID
    replay: int
    attempt: int
    url: str
    headers: dict[str, str]
    body: bytes
    refusal: str = ""


def run(*, sender: Sender | None = None, seconds: float = RUN_SECONDS) -> int:
    """Send what is due until nothing is or the time is up; returns how many tries were made.

    One run at a time in a process: a run fills its own places, and Celery's other threads are for other jobs.
    """
    if not _one_run.acquire(blocking=False):
        return 0
    try:
        if not _due(most=1, now=timezone.now()):
            return 0  # the usual case, without a thread and an event loop
        with start_blocking_portal() as portal:
            return _pump(portal, sender or Sender(rules=config.rules()), timezone.now() + timedelta(seconds=seconds))
    finally:
        _one_run.release()


def _pump(portal: BlockingPortal, sender: Sender, until: datetime) -> int:
    running: dict[Future[Answer], Job] = {}
    tries = 0
    while True:
        room = PLACES - len(running)
        if room and timezone.now() < until:
            for job in claim(most=room, now=timezone.now()):
                tries += 1
                running[portal.start_task_soon(_send, sender, job)] = job
        if not running:
            return tries
        done, _ = wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
        for future in done:
            job, failure = running.pop(future), future.exception()
            if failure is not None:
                # Not the network's: a mistake of ours. Its lease ends, the try was counted, the others go on.
                _log.error("delivery %s: %s", job.delivery_id, type(failure).__name__, exc_info=failure)
                continue
            finish(job, future.result(), now=timezone.now(), dice=random.random)


async def _send(sender: Sender, job: Job) -> Answer:
    if job.refusal:
        return Answer(status=None, body="", error=job.refusal, latency_ms=0)
    return await sender.send(url=job.url, headers=job.headers, body=job.body)


def claim(*, most: int, now: datetime) -> list[Job]:
    """Due tries, at most `most`, each counted and leased to the caller."""
    with transaction.atomic():
        ids = _due(most=most, now=now)
        rows = list(
            Delivery.objects.select_for_update(skip_locked=True, of=("self",))
            .select_related("endpoint", "event")
            .filter(id__in=ids, state=DeliveryState.PENDING, next_attempt_at__lte=now)
        )
        spent = [row for row in rows if row.attempts >= retries.TRIES_MAX]
        for row in spent:
            # Its last try was counted, and whoever made it died before it could tell.
            _close(row.id, row.attempts, DeliveryState.DEAD, now=now, error="The last try was cut off.")
        taken = [row for row in rows if row.attempts < retries.TRIES_MAX]
        Delivery.objects.filter(id__in=[row.id for row in taken]).update(
            attempts=F("attempts") + 1, next_attempt_at=now + LEASE, last_attempt_at=now
        )
    return [_job(row, now) for row in taken]


def finish(job: Job, answer: Answer, *, now: datetime, dice: Callable[[], float]) -> None:
    """Write down what came of a try. A try whose lease ended and that another has taken over changes nothing."""
    seen = {
        "response_status": answer.status,
        "response_body": answer.body,
        "error": _error_of(answer)[:200],
        "latency_ms": answer.latency_ms,
    }
    with transaction.atomic():
        if answer.accepted:
            if _close(job.delivery_id, job.attempt, DeliveryState.DELIVERED, now=now, **seen):
                _healthy(job.endpoint_id, now)
                _keep(job, now=now, **seen)
            return
        gone = answer.status == _GONE
        pause = retries.pause(tries=job.attempt, dice=dice(), retry_after_s=answer.retry_after_s)
        if pause is None or gone:
            mine = _close(job.delivery_id, job.attempt, DeliveryState.DEAD, now=now, **seen)
        else:
            mine = _held(job).update(next_attempt_at=now + pause, updated_at=now, **seen)
        if mine:
            _unhealthy(job.endpoint_id, now, gone=gone)
            _keep(job, now=now, **seen)


def _due(*, most: int, now: datetime) -> list[uuid.UUID]:
    values: dict[str, Any] = {"now": now, "lease": LEASE, "each": PER_ENDPOINT, "most": most}
    with connection.cursor() as cursor:
        cursor.execute(_DUE, values)
        return [row[0] for row in cursor.fetchall()]


def _job(row: Delivery, now: datetime) -> Job:
    refusal, headers = "", {}
    try:
        live = selectors.secrets_of(row.endpoint, now=now)
        headers = signing.headers(event_id=row.event_id, body=row.event.body, at=now, secrets_live=live)
    except Unreadable as error:
        _log.error("webhook %s: %s", row.endpoint_id, error)
        refusal = "The signing secret cannot be opened; rotate it."
    return Job(
        delivery_id=row.id,
        endpoint_id=row.endpoint_id,
        tenant_id=row.tenant_id,
        replay=row.replays,
        attempt=row.attempts + 1,
        url=row.endpoint.url,
        headers=headers,
        body=row.event.body.encode(),
        refusal=refusal,
    )


def _held(job: Job) -> QuerySet[Delivery]:
    return Delivery.objects.filter(id=job.delivery_id, state=DeliveryState.PENDING, attempts=job.attempt)


def _close(delivery_id: uuid.UUID, attempt: int, state: DeliveryState, *, now: datetime, **seen: object) -> int:
    rows = Delivery.objects.filter(id=delivery_id, state=DeliveryState.PENDING, attempts=attempt)
    return rows.update(state=state, next_attempt_at=None, finished_at=now, updated_at=now, **seen)


def _keep(job: Job, *, now: datetime, **seen: Any) -> None:
    """The try in its delivery's history; the oldest go where there are too many."""
    row = Attempt(
        tenant_id=job.tenant_id,
        delivery_id=job.delivery_id,
        replay=job.replay,
        number=job.attempt,
        finished_at=now,
        **seen,
    )
    Attempt.objects.bulk_create([row], ignore_conflicts=True)
    history = Attempt.objects.filter(delivery_id=job.delivery_id)
    old = history.order_by("-replay", "-number").values_list("id", flat=True)[ATTEMPTS_KEPT:]
    Attempt.objects.filter(id__in=list(old)).delete()


def _healthy(endpoint_id: uuid.UUID, now: datetime) -> None:
    stale = Q(last_success_at=None) | Q(last_success_at__lt=now - timedelta(minutes=1)) | Q(failures__gt=0)
    Endpoint.objects.filter(stale, id=endpoint_id).update(failures=0, failing_since=None, last_success_at=now)


def _unhealthy(endpoint_id: uuid.UUID, now: datetime, *, gone: bool) -> None:
    Endpoint.objects.filter(id=endpoint_id).update(
        failures=F("failures") + 1, failing_since=Coalesce("failing_since", now)
    )
    endpoint = Endpoint.objects.filter(id=endpoint_id, deleted_at=None, enabled=True).first()
    if endpoint is None:
        return
    long = retries.failed_for_long(failures=endpoint.failures, failing_since=endpoint.failing_since, now=now)
    if gone or long:
        services.disable(endpoint=endpoint, reason=DisabledReason.GONE if gone else DisabledReason.FAILING)


def _error_of(answer: Answer) -> str:
    if answer.error or answer.accepted or answer.status is None:
        return answer.error
    if 300 <= answer.status < 400:
        return "Redirects are not followed."
    return f"The endpoint answered {answer.status}."
