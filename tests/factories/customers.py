"""Makes customers of a platform that runs elsewhere, and takes their keys away: a program, and the hand that drives it.

`python -m tests.factories.customers` reads one JSON order a line on stdin, does it through the services of the control
plane on the platform that its environment names, and answers with one JSON line. Invariant: what is ordered here is
what the console and the management API would do, commit and push included.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

ROOT = Path(__file__).resolve().parents[2]
PLAN = "Without limits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Customer:
    """A tenant of its own, with one key."""

    tenant_id: str
    project_id: str
    key_id: str
    key: str


class Customers:
    """The program as a child process, one order at a time; ends with the block."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment

    def __enter__(self) -> Self:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.factories.customers"], cwd=ROOT, env=self._environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        return self

    def __exit__(self, *failure: object) -> None:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.close()
        self._child.wait(timeout=20)
        self._child.stdout.close()

    def make(self, *, caps: dict[str, int]) -> Customer:
        """A new tenant with these limits on itself, by metric."""
        return Customer(**self._order("make", caps=caps))

    def revoke(self, customer: Customer) -> None:
        """Returns once the change has committed and its push was tried."""
        self._order("revoke", key_id=customer.key_id)

    def suspend(self, customer: Customer) -> None:
        """As `revoke`, for the whole tenant."""
        self._order("suspend", tenant_id=customer.tenant_id)

    def _order(self, name: str, **given: Any) -> dict[str, Any]:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps([name, given]) + "\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        assert line, f"the order {name} ended the program: see its stderr"
        answer: dict[str, Any] = json.loads(line)
        return answer


def _make(*, caps: dict[str, int]) -> dict[str, str]:
    from tenants import services
    from tenants.models import Plan

    plan = Plan.objects.filter(name=PLAN).first() or services.create_plan(name=PLAN, queued_max=10_000)
    tenant = services.create_tenant(name=f"Customer {uuid4()}", plan=plan)
    project = services.create_project(tenant=tenant, name="Default")
    services.set_limits(tenant=tenant, caps=caps)
    key, text = services.create_key(project=project, name="Only")
    return {"tenant_id": str(tenant.id), "project_id": str(project.id), "key_id": str(key.id), "key": text}


def _revoke(*, key_id: str) -> dict[str, str]:
    from tenants import services
    from tenants.models import ApiKey

    services.revoke_key(key=ApiKey.objects.get(id=key_id))
    return {}


def _suspend(*, tenant_id: str) -> dict[str, str]:
    from tenants import services
    from tenants.models import Tenant

    services.suspend_tenant(tenant=Tenant.objects.get(id=tenant_id))
    return {}


def main() -> None:
    """Obeys until stdin ends."""
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    django.setup()
    orders = {"make": _make, "revoke": _revoke, "suspend": _suspend}
    for line in sys.stdin:
        name, given = json.loads(line)
        sys.stdout.write(json.dumps(orders[name](**given)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
