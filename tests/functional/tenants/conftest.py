"""A tenant with a project and a key, in real PostgreSQL; Redis at the test's own address."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pytest_django import Settings
from redis import Redis

from controlplane.env import environment
from controlplane.models import ServedModel
from tenants import services
from tenants.models import ApiKey, Plan, Project, Tenant


@dataclass(frozen=True)
class Customer:
    tenant: Tenant
    project: Project
    key: ApiKey
    plaintext: str


@pytest.fixture
def wired(settings: Settings, valkey_url: str, tmp_path: Path) -> Iterator[Redis]:
    """Settings as a process of this test session would read them; a sync client on the emptied database."""
    settings.ENV = environment()
    settings.STATIC_ROOT = tmp_path  # WhiteNoise warns of a folder that is not there
    settings.CELERY_BROKER_URL = environment().broker
    client = Redis.from_url(valkey_url)
    client.flushall()
    yield client
    client.close()


@pytest.fixture
def plan(db: None, wired: Redis) -> Plan:
    ServedModel.objects.bulk_create(ServedModel(name=name, pool="p", tokenizer_dir="t") for name in ("a", "b", "m"))
    plan = services.create_plan(name="basic", weight_milli=2_000, queued_max=50)
    services.set_limits(plan=plan, caps={"requests_per_minute": 60, "tokens_per_day": 1_000})
    return plan


def customer(plan: Plan, name: str) -> Customer:
    tenant = services.create_tenant(name=name, plan=plan, timezone="Asia/Kolkata")
    project = services.create_project(tenant=tenant, name="default")
    key, plaintext = services.create_key(project=project, name="first")
    return Customer(tenant, project, key, plaintext)


@pytest.fixture
def acme(plan: Plan) -> Customer:
    return customer(plan, "acme")


@pytest.fixture
def mallory(plan: Plan) -> Customer:
    return customer(plan, "mallory")
