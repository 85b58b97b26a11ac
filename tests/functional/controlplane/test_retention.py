"""What sign-ins leave behind goes when its time is over, not before; the beat knows the job."""

from datetime import UTC, datetime, timedelta

import pytest
from axes.models import AccessAttempt, AccessLog
from django.contrib.sessions.models import Session
from django.core.cache import cache
from django.db import connection

from controlplane.celery import app
from controlplane.retention import SIGN_INS_FOR, WRONG_SIGN_INS_FOR, forget_sign_ins
from tenants import pruning
from tenants.models import OutboxEvent
from tenants.pruning import delete_in_steps

pytestmark = pytest.mark.django_db

NOW = datetime(2027, 1, 15, 12, tzinfo=UTC)
MOMENT = timedelta(seconds=1)


class TestForgetSignIns:
    def test_keeps_to_the_stated_times(self) -> None:
        forget_sign_ins(now=NOW + SIGN_INS_FOR)  # what other tests committed
        for key, at in (("over", NOW - MOMENT), ("live", NOW + MOMENT)):
            Session.objects.create(session_key=key, session_data="", expire_date=at)
        for model, kept_for in ((AccessAttempt, WRONG_SIGN_INS_FOR), (AccessLog, SIGN_INS_FOR)):
            for name, at in (("old", NOW - kept_for - MOMENT), ("young", NOW - kept_for + MOMENT)):
                failed = {"failures_since_start": 1} if model is AccessAttempt else {}
                row = model.objects.create(username=name, ip_address="192.0.2.1", user_agent="x", **failed)
                model.objects.filter(pk=row.pk).update(attempt_time=at)
        assert forget_sign_ins(now=NOW) == 3
        assert [one.session_key for one in Session.objects.all()] == ["live"]
        assert [one.username for one in AccessAttempt.objects.all()] == ["young"]
        assert [one.username for one in AccessLog.objects.all()] == ["young"]

    def test_drops_marks_that_are_over_and_keeps_the_others(self) -> None:
        cache.set("used-code", "1", timeout=60)
        cache.set("other-code", "1", timeout=3600)
        with connection.cursor() as cursor:
            cursor.execute("SELECT min(expires) FROM controlplane_cache")
            [first] = cursor.fetchone()
        assert forget_sign_ins(now=first) == 0
        assert forget_sign_ins(now=first + MOMENT) == 1
        assert cache.get("other-code") == "1"

    def test_is_a_job_of_the_beat(self) -> None:
        names = {one["task"] for one in app.conf.beat_schedule.values()}
        assert {"controlplane.tasks.forget_old", "tenants.tasks.keep_lost_events", "tenants.tasks.expire_keys"} <= names


class TestDeleteInSteps:
    def test_deletes_a_bounded_number_oldest_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pruning, "ROWS_MAX", 2)
        monkeypatch.setattr(pruning, "ROUNDS_MAX", 2)
        made = [OutboxEvent.objects.create(name="key.created", body={}) for _ in range(5)]
        kept = OutboxEvent.objects.create(name="key.revoked", body={})
        rows = OutboxEvent.objects.filter(name="key.created")
        assert delete_in_steps(rows) == 4
        assert [row.id for row in rows] == [made[-1].id]
        assert delete_in_steps(rows) == 1
        assert [row.id for row in OutboxEvent.objects.all()] == [kept.id]
