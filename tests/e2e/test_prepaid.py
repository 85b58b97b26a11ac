"""A prepaid tenant: refused without credit, served as soon as it has some, by the commands that an operator types."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import pytest

from controlplane.seed import TENANTS
from tests.e2e.api import assert_is_error
from tests.e2e.conftest import Platform

IN_FORCE_SECONDS = 5.0
COMMAND_SECONDS = 60.0
SWITCH = """
from tenants import services
from tenants.models import Tenant
tenant = Tenant.objects.get(name={name!r}, state="active")
assert tenant.prepaid is {before}
services.change_tenant(tenant=tenant, changes={{"prepaid": {after}}})
"""


def manage(platform: Platform, *words: str) -> str:
    done = platform.instance.manage(*words, deadline=COMMAND_SECONDS)
    assert done.returncode == 0, done.stdout
    return str(done.stdout)


@pytest.fixture
def tenant(platform: Platform) -> Iterator[str]:
    """The second demo tenant, which is not prepaid until here, nor afterwards."""
    name = TENANTS[1]
    manage(platform, "shell", "--command", SWITCH.format(name=name, before=False, after=True))
    yield name
    manage(platform, "shell", "--command", SWITCH.format(name=name, before=True, after=False))


def ask(platform: Platform) -> httpx.Response:
    document = {"model": platform.model, "prompt": "say: paid first", "max_tokens": 4}
    return platform.other_api.post("/completions", document)


def test_is_refused_until_it_has_credit(platform: Platform, tenant: str) -> None:
    refused = ask(platform)
    error = assert_is_error(refused, status=402)
    assert error["code"] == "budget_exceeded"
    assert "prepaid credit" in error["message"]
    assert refused.headers["x-should-retry"] == "false"
    key = f"e2e-{platform.started_at}-{time.monotonic_ns()}"
    said = manage(platform, "credit", "top-up", "--tenant", tenant, "--amount", "1", "--key", key, "--reason", "test")
    assert "credit left: 1 " in said
    until = time.monotonic() + IN_FORCE_SECONDS
    while (answer := ask(platform)).status_code == 402 and time.monotonic() < until:
        time.sleep(0.2)
    assert answer.status_code == 200, answer.text
    assert "prepaid: may still spend 0.9" in manage(platform, "credit", "balance", "--tenant", tenant)
