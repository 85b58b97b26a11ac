"""The console on real PostgreSQL and Valkey; ClickHouse is away unless a test brings it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings
from redis import Redis

from controlplane.env import environment


@pytest.fixture
def wired(settings: Settings, valkey_url: str, tmp_path: Path) -> Iterator[Redis]:
    settings.ENV = environment()
    settings.STATIC_ROOT = tmp_path  # WhiteNoise warns of a folder that is not there
    settings.CELERY_BROKER_URL = environment().broker
    client = Redis.from_url(valkey_url)
    client.flushall()
    yield client
    client.close()


@pytest.fixture
def operator(db: None, wired: Redis, client: Client) -> Client:
    client.force_login(User.objects.create_superuser("ada", password="a long pass phrase"))
    return client
