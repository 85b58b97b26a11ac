"""The Celery worker as a process, killed with an event or a delivery in hand: nothing is lost or made twice."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest
from django.db import connection, connections
from django.utils import timezone
from redis import Redis

from controlplane.celery import app
from tenants import events, tasks
from tenants.models import AuditEntry, OutboxEvent
from tenants.webhooks import dispatch, fanout
from tenants.webhooks.models import Delivery, Endpoint, Event
from tenants.webhooks.transport import Sender
from tests.functional.webhooks.receivers import Receiver, status

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_SECONDS = 60

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]


@contextmanager
def worker(home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A Celery worker as `make up` starts it, on the test's own database."""
    database = urlsplit(os.environ["DATABASE_URL"])._replace(path="/" + connection.settings_dict["NAME"])
    environment = os.environ | {
        "DATABASE_URL": urlunsplit(database),
        "WEIR_HOME": str(home),
        "WEIR_WEBHOOKS_LOOPBACK": "1",
        "PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}",
    }
    command = [sys.executable, "-m", "celery", "-A", "controlplane.celery", "worker", "--pool=threads", "-c", "2"]
    command += ["--loglevel=INFO", "--without-gossip", "--without-mingle"]
    with (home / "celery.log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(DEADLINE_SECONDS)


def wait_until(true: Callable[[], bool], what: str, home: Path) -> None:
    """Polls a condition; the deadline is a guard against hanging, not a measurement."""
    give_up = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < give_up:
        if true():
            return
        time.sleep(0.05)
    pytest.fail(f"{what}:\n{(home / 'celery.log').read_text()[-4000:]}")


def in_hand(broker: Redis) -> int:
    """Messages that a consumer has and has not acknowledged."""
    return int(broker.hlen("unacked"))


@pytest.fixture
def broker(wired: Redis, valkey_url: str) -> Iterator[Redis]:
    """The broker's own database, empty but for what this test sends."""
    client = Redis.from_url(urlunsplit(urlsplit(valkey_url)._replace(path="/1")))
    client.flushdb()
    yield client
    client.close()


class TestEventInHand:
    def test_is_fanned_out_once_after_kill_9(self, hook: Endpoint, broker: Redis, tmp_path: Path) -> None:
        total = OutboxEvent.objects.exclude(tenant_id=None).count()
        holder = connections["default"].copy()
        try:
            with worker(tmp_path) as first, holder.cursor() as cursor:
                cursor.execute("BEGIN")
                cursor.execute("LOCK TABLE webhooks_event, tenants_auditentry IN EXCLUSIVE MODE")
                assert tasks.relay_outbox() == OutboxEvent.objects.count()
                wait_until(lambda: in_hand(broker) > 0, "no message was taken", tmp_path)
                # It has messages, cannot write them down, and dies.
                first.send_signal(signal.SIGKILL)
                first.wait(DEADLINE_SECONDS)
                cursor.execute("ROLLBACK")
        finally:
            holder.close()
        assert in_hand(broker) > 0
        assert not Event.objects.exists()
        assert not AuditEntry.objects.exists()
        # The broker holds them back until its visibility timeout; the outbox does not wait for it.
        later = timezone.now() + timedelta(minutes=2)
        fanout.sweep_lost(now=later)
        events.keep_lost(now=later)
        assert Event.objects.count() == Delivery.objects.filter(endpoint=hook).count() == total
        assert AuditEntry.objects.count() == OutboxEvent.objects.count()
        # Then the broker hands them out again, to another worker: a second time, and it changes nothing.
        with events.open_broker() as again:
            channel = again.default_channel
            for tag in broker.hkeys("unacked"):
                channel.qos.restore_by_tag(tag.decode())
        with worker(tmp_path):
            wait_until(lambda: not broker.llen("weir.webhooks"), "the webhook queue was not emptied", tmp_path)
            wait_until(lambda: not broker.llen("weir.audit"), "the audit queue was not emptied", tmp_path)
            wait_until(lambda: in_hand(broker) == 0, "not everything was acknowledged", tmp_path)
        assert Event.objects.count() == Delivery.objects.count() == total
        assert AuditEntry.objects.count() == OutboxEvent.objects.count()


class TestDeliveryInHand:
    def test_goes_out_again_under_the_same_id_after_kill_9(
        self, hook: Endpoint, there: Receiver, sender: Sender, broker: Redis, tmp_path: Path
    ) -> None:
        release = threading.Event()

        def waits(handler: BaseHTTPRequestHandler, number: int) -> None:
            release.wait(DEADLINE_SECONDS)
            handler.close_connection = True

        there.behave = waits
        fanout.fan_out(events.message_of(OutboxEvent.objects.get(name="webhook.created")))
        with worker(tmp_path) as process:
            app.send_task("tenants.webhooks.tasks.deliver_due", connection=app.connection_for_write(broker_url(broker)))
            wait_until(lambda: len(there.arrived) == 1, "nothing was sent", tmp_path)
            process.send_signal(signal.SIGKILL)
            process.wait(DEADLINE_SECONDS)
        release.set()
        delivery = Delivery.objects.get()
        assert (delivery.state, delivery.attempts) == ("pending", 1)
        assert dispatch.run(sender=sender) == 0  # the dead worker's lease still stands
        there.behave = status(200)
        Delivery.objects.update(next_attempt_at=timezone.now())
        assert dispatch.run(sender=sender) == 1
        delivery.refresh_from_db()
        assert (delivery.state, delivery.attempts) == ("delivered", 2)
        assert [headers["webhook-id"] for headers, _ in there.arrived] == [str(delivery.event_id)] * 2


def broker_url(broker: Redis) -> str:
    known = broker.connection_pool.connection_kwargs
    return f"redis://{known['host']}:{known['port']}/{known['db']}"
