"""Customers as in the tests of tenants, and webhooks that lead to receivers on this machine."""

from collections.abc import Callable, Iterator

import pytest
from pytest_django import Settings

from tenants import events
from tenants.models import OutboxEvent
from tenants.webhooks import services
from tenants.webhooks.destination import Rules
from tenants.webhooks.fanout import fan_out
from tenants.webhooks.models import Endpoint
from tenants.webhooks.transport import Sender
from tests.functional.tenants.conftest import Customer, acme, mallory, plan, wired
from tests.functional.webhooks.receivers import Receiver, receiver, status

__all__ = ["acme", "mallory", "plan", "wired"]


@pytest.fixture
def development(settings: Settings, wired: object) -> None:
    """An installation that may send to this machine itself."""
    settings.ENV = settings.ENV.model_copy(update={"webhooks_loopback": True})


@pytest.fixture
def sender() -> Sender:
    return Sender(rules=Rules(loopback=True), attempt_seconds=5.0)


@pytest.fixture
def there() -> Iterator[Receiver]:
    """A receiver that accepts everything."""
    with receiver(status(200, b"thanks")) as server:
        yield server


@pytest.fixture
def hook(development: None, acme: Customer, there: Receiver) -> Endpoint:
    """acme's webhook for everything, at the receiver."""
    return services.create_endpoint(tenant=acme.tenant, url=f"http://127.0.0.1:{there.port}/in")[0]


@pytest.fixture
def take_all() -> Callable[[str], int]:
    """Fan out what the outbox holds of one name; returns how many deliveries were made."""

    def take(name: str) -> int:
        return sum(fan_out(events.message_of(row)) for row in OutboxEvent.objects.filter(name=name).order_by("id"))

    return take
