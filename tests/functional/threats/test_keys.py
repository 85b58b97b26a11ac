"""T8: no work tells an unknown key from a wrong one. Operations are counted: a busy clock proves nothing."""

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from contracts.clock import FakeClock
from contracts.errors import AuthFailed
from contracts.tenancy import TenantContext
from tenants import selectors, services
from tenants.auth import keys, resolve
from tenants.auth.keys import mint
from tenants.auth.resolve import Resolver
from tenants.models import ApiKey
from tests.functional.tenants.conftest import Customer, acme, mallory, plan

__all__ = ["acme", "mallory", "plan"]

PEPPERS = (b"new pepper", b"old pepper")


class Counted:
    """Every HMAC, look-up and statement that one try costs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        digest = keys.digest

        def counting(*args: Any, **kwargs: Any) -> str:
            self.done.append("hmac")
            return digest(*args, **kwargs)

        monkeypatch.setattr(resolve, "digest", counting)
        self.resolver = Resolver(self.load, clock=FakeClock(), peppers=PEPPERS)

    async def load(self, digests: Sequence[str]) -> TenantContext | None:
        self.done.append(f"look-up of {len(digests)} digests of {', '.join(str(len(one)) for one in digests)}")
        return None

    async def cost(self, key: str) -> list[str]:
        self.done.clear()
        with pytest.raises(AuthFailed):
            await self.resolver.resolve(key)
        return list(self.done)


def near(key: str) -> str:
    """A well-formed key that begins as a real one does."""
    return next(one for one in (mint() for _ in range(10_000)) if one[:6] == key[:6])


class TestResolver:
    async def test_t08_costs_the_same_operations_for_every_key_that_opens_nothing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        counted, real = Counted(monkeypatch), mint()
        first = [await counted.cost(key) for key in (mint(), near(real), mint())]
        assert first == [["hmac", "hmac", "look-up of 2 digests of 64, 64"]] * 3
        again = mint()
        assert await counted.cost(again) == first[0]
        assert await counted.cost(again) == ["hmac"]  # known to open nothing, for a while: no look-up

    async def test_t08_a_text_that_is_no_key_costs_nothing_and_tells_nothing_of_those_there_are(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        counted, real = Counted(monkeypatch), mint()
        for text in ("", "weir_", real[:-1], real + "x", real.swapcase(), "sk-" + real, "weir_" + "é" * 38):
            assert await counted.cost(text) == []


@pytest.mark.django_db
class TestDatabase:
    def test_t08_runs_the_same_statements_for_unknown_revoked_expired_and_closed(
        self, acme: Customer, mallory: Customer
    ) -> None:
        gone, late, other = (services.create_key(project=acme.project, name=name) for name in ("gone", "late", "other"))
        services.revoke_key(key=gone[0])
        ApiKey.objects.filter(id=late[0].id).update(expires_at=timezone.now() - timedelta(seconds=1))
        services.close_tenant(tenant=mallory.tenant)
        asked = {"unknown": mint(), "revoked": gone[1], "expired": late[1], "closed": mallory.plaintext}
        ran = {}
        for name, text in asked.items():
            with CaptureQueriesContext(connection) as seen:
                assert selectors.load_context([keys.digest(text, services.pepper())]) is None, name
            ran[name] = [shape(one["sql"]) for one in seen.captured_queries]
        assert ran["unknown"], "there is something to compare"
        assert {tuple(one) for one in ran.values()} == {tuple(ran["unknown"])}
        assert selectors.load_context([keys.digest(other[1], services.pepper())]) is not None


def shape(sql: str) -> str:
    """A statement without its values."""
    return re.sub(r"'[^']*'(::\w+)?", "?", sql)
