"""The Celery application: background jobs only. Inference never rides here (late redelivery: docs/decisions)."""

import os

from celery import Celery
from celery.signals import heartbeat_sent, setup_logging

from stores.pulse import pulse_file, touch

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

app = Celery("weir")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["tenants", "tenants.webhooks", "safety", "billing", "controlplane"])
# The consumers of domain events live in the worker process. By name: they are looked up when the worker has set
# Django up; an import before that fails, and Celery swallows what a signal's receiver raises.
app.steps["consumer"].add("tenants.consumer:AuditConsumer")
app.steps["consumer"].add("tenants.webhooks.consumer:WebhookConsumer")
app.conf.beat_schedule = {
    "relay management events": {"task": "tenants.tasks.relay_outbox", "schedule": 1.0, "options": {"expires": 5}},
    "keep events that the exchange lost": {
        "task": "tenants.tasks.keep_lost_events",
        "schedule": 60.0,
        "options": {"expires": 60},
    },
    "deliver webhooks": {"task": "tenants.webhooks.tasks.deliver_due", "schedule": 2.0, "options": {"expires": 5}},
    "fan out events that the exchange lost": {
        "task": "tenants.webhooks.tasks.sweep_lost",
        "schedule": 60.0,
        "options": {"expires": 60},
    },
    "forget old webhook deliveries": {
        "task": "tenants.webhooks.tasks.forget_old",
        "schedule": 3600.0,
        "options": {"expires": 3600},
    },
    "forget old sign-ins": {
        "task": "controlplane.tasks.forget_old",
        "schedule": 3600.0,
        "options": {"expires": 3600},
    },
    "tell of budgets": {
        "task": "controlplane.tasks.relay_budget_alerts",
        "schedule": 2.0,
        "options": {"expires": 5},
    },
    "tell of budgets that were missed": {
        "task": "controlplane.tasks.relay_budget_alerts",
        "schedule": 600.0,
        "kwargs": {"everyone": True},
        "options": {"expires": 600},
    },
    "hold limits to metered usage": {
        "task": "controlplane.tasks.check_limits",
        "schedule": 300.0,
        "options": {"expires": 300},
    },
    "begin limits with what was used before": {
        "task": "controlplane.tasks.begin_limits",
        "schedule": 5.0,
        "options": {"expires": 5},
    },
    "hold prepaid tenants to their credit": {
        "task": "controlplane.tasks.follow_credit",
        "schedule": 60.0,
        "options": {"expires": 60},
    },
    "close periods": {"task": "billing.tasks.close_due", "schedule": 3600.0, "options": {"expires": 3600}},
    "run billing jobs": {
        "task": "billing.tasks.run_billing_jobs",
        "schedule": 20.0,
        "options": {"expires": 20},
    },
    "store documents": {"task": "billing.tasks.store_documents", "schedule": 60.0, "options": {"expires": 60}},
    "expire credit": {"task": "billing.tasks.expire_credits", "schedule": 600.0, "options": {"expires": 600}},
    "tell of credit that runs out": {
        "task": "billing.tasks.tell_of_credit",
        "schedule": 60.0,
        "options": {"expires": 60},
    },
    "end keys whose time is over": {"task": "tenants.tasks.expire_keys", "schedule": 30.0, "options": {"expires": 30}},
    "push key epochs": {"task": "tenants.tasks.push_epochs", "schedule": 30.0, "options": {"expires": 30}},
}


@heartbeat_sent.connect  # type: ignore[untyped-decorator]  # as below
def _show_pulse(**kwargs: object) -> None:
    """Every two seconds, from the loop that consumes: one that hangs, or has lost its broker, has no pulse."""
    from django.conf import settings

    touch(path=pulse_file(home=settings.ENV.home, name="celery"))


@setup_logging.connect  # type: ignore[untyped-decorator]  # celery has no types
def _use_django_logging(**kwargs: object) -> None:
    """Celery keeps its hands off logging: Django's configuration stands."""
