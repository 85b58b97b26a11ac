"""The Celery application: the consumer of domain events really is a step of its worker."""

from celery.bootsteps import ConsumerStep
from kombu.utils.imports import symbol_by_name

from controlplane.celery import app
from tenants.consumer import AuditConsumer


class TestConsumers:
    def test_the_audit_consumer_is_a_step_that_can_be_looked_up(self) -> None:
        steps = {symbol_by_name(step) for step in app.steps["consumer"]}
        assert AuditConsumer in steps
        assert issubclass(AuditConsumer, ConsumerStep)

    def test_every_beat_entry_names_a_task_of_ours(self) -> None:
        app.loader.import_default_modules()
        assert {entry["task"] for entry in app.conf.beat_schedule.values()} <= set(app.tasks)
