"""The Celery application: background jobs only. Inference never rides here (late redelivery: docs/decisions)."""

import os

from celery import Celery
from celery.signals import setup_logging

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

app = Celery("weir")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["tenants", "safety", "billing"])
# The one consumer of domain events lives in the worker process. By name: it is looked up when the worker has set
# Django up; an import before that fails, and Celery swallows what a signal's receiver raises.
app.steps["consumer"].add("tenants.consumer:AuditConsumer")
app.conf.beat_schedule = {
    "relay management events": {"task": "tenants.tasks.relay_outbox", "schedule": 1.0, "options": {"expires": 5}},
    "push key epochs": {"task": "tenants.tasks.push_epochs", "schedule": 30.0, "options": {"expires": 30}},
}


@setup_logging.connect  # type: ignore[untyped-decorator]  # celery has no types
def _use_django_logging(**kwargs: object) -> None:
    """Celery keeps its hands off logging: Django's configuration stands."""
