"""The Celery application: background jobs only. Inference never rides here (late redelivery: docs/decisions)."""

import os

from celery import Celery
from celery.signals import setup_logging

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

app = Celery("weir")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["tenants", "safety", "billing"])
app.conf.beat_schedule = {
    "relay management events": {"task": "tenants.tasks.relay_outbox", "schedule": 1.0, "options": {"expires": 5}},
    "push key epochs": {"task": "tenants.tasks.push_epochs", "schedule": 30.0, "options": {"expires": 30}},
}


@setup_logging.connect  # type: ignore[untyped-decorator]  # celery has no types
def _use_django_logging(**kwargs: object) -> None:
    """Celery keeps its hands off logging: Django's configuration stands."""


@app.on_after_configure.connect  # type: ignore[untyped-decorator]
def _install_consumers(sender: Celery, **kwargs: object) -> None:
    """The one consumer of domain events lives in the Celery worker process."""
    from tenants.consumer import AuditConsumer

    sender.steps["consumer"].add(AuditConsumer)
