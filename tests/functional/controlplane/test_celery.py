"""The Celery application: the consumer of domain events really is a step of its worker; brokers of each kind."""

import pytest
from botocore.exceptions import EndpointConnectionError
from celery.bootsteps import ConsumerStep
from kombu.utils.imports import symbol_by_name
from pytest_django import Settings
from redis.exceptions import ConnectionError as RedisConnectionError

from controlplane.celery import app
from tenants import events
from tenants.consumer import AuditConsumer


class TestConsumers:
    def test_the_audit_consumer_is_a_step_that_can_be_looked_up(self) -> None:
        steps = {symbol_by_name(step) for step in app.steps["consumer"]}
        assert AuditConsumer in steps
        assert issubclass(AuditConsumer, ConsumerStep)

    def test_every_beat_entry_names_a_task_of_ours(self) -> None:
        app.loader.import_default_modules()
        assert {entry["task"] for entry in app.conf.beat_schedule.values()} <= set(app.tasks)


class TestBrokers:
    @pytest.mark.parametrize(
        ("url", "away"),
        [
            ("redis://127.0.0.1:1/1", RedisConnectionError),
            ("amqp://guest:guest@127.0.0.1:1//", ConnectionRefusedError),
            ("sqs://key:secret@127.0.0.1:1", EndpointConnectionError),
        ],
    )
    def test_each_kind_takes_our_options_and_is_only_away(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch, url: str, away: type[Exception]
    ) -> None:
        for name, value in (("AWS_DEFAULT_REGION", "us-east-1"), ("AWS_MAX_ATTEMPTS", "1")):
            monkeypatch.setenv(name, value)
        settings.CELERY_BROKER_URL = url
        with events.open_broker() as connection, pytest.raises(away):
            connection.transport.establish_connection()
