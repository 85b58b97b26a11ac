"""What a web process may ask of PostgreSQL, on a real one: long statements, transactions that sit idle."""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import OperationalError, connection, transaction
from django.test import Client

from controlplane.database import bound_web_process
from controlplane.env import Environment
from tenants import services
from tenants.admin import PlanAdmin
from tenants.api.plans import PlanRoute
from tenants.models import Plan

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def bound(request: pytest.FixtureRequest, db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Bounds this process as a web process; the next connection has them."""

    def bind(*, statement: float, idle: float) -> None:
        env = Environment(WEIR_DATABASE_STATEMENT_SECONDS=statement, WEIR_DATABASE_IDLE_SECONDS=idle)
        bound_web_process(env)
        connection.close()

    before = dict(settings.DATABASES["default"]["OPTIONS"])
    options = connection.settings_dict["OPTIONS"]
    assert options is settings.DATABASES["default"]["OPTIONS"], "a connection reads the very settings"
    yield bind
    options.clear()
    options.update(before)
    connection.close()


@pytest.fixture
def other() -> Iterator[Any]:
    """A connection of somebody else to the same database."""
    params = {**connection.get_connection_params(), "cursor_factory": None}
    known = {name: params[name] for name in ("dbname", "user", "password", "host", "port")}
    with psycopg.connect(**known) as opened:
        yield opened


@pytest.fixture
def root(wired: object, db: None) -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(User.objects.create_superuser("root"))
    return client


@pytest.fixture
def plan(wired: object, db: None) -> Plan:
    return services.create_plan(name="basic")


def patch(client: Client, plan: Plan) -> Any:
    path = f"/api/v1/plans/{plan.pk}"
    return client.patch(path, {"weight_milli": 5}, content_type="application/json", headers={"If-Match": "*"})


def is_gone(other: Any, pid: int) -> bool:
    other.rollback()
    return other.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone() == (0,)


class TestBounds:
    def test_are_stated_by_the_environment_and_hold_for_new_connections(self, bound: Callable[..., None]) -> None:
        bound(statement=2.5, idle=7)
        with connection.cursor() as cursor:
            cursor.execute("SHOW statement_timeout")
            assert cursor.fetchone() == ("2500ms",)
            cursor.execute("SHOW idle_in_transaction_session_timeout")
            assert cursor.fetchone() == ("7s",)

    def test_are_fifteen_and_thirty_seconds_where_nothing_is_said(self) -> None:
        env = Environment()
        assert (env.statement_seconds, env.idle_transaction_seconds) == (15, 30)

    def test_end_a_statement(self, bound: Callable[..., None]) -> None:
        bound(statement=0.05, idle=0)
        with pytest.raises(OperationalError, match="statement timeout"), connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(60)")


class TestManagementRequest:
    def test_that_waits_too_long_for_a_lock_is_503_with_retry_after(
        self, bound: Callable[..., None], root: Client, plan: Plan, other: Any
    ) -> None:
        bound(statement=0.2, idle=0)
        other.execute("SELECT * FROM tenants_plan FOR UPDATE")
        answer = patch(root, plan)
        other.rollback()
        assert (answer.status_code, answer["Retry-After"]) == (503, "5")
        assert answer.json()["error"]["type"] == "service_unavailable_error"
        assert "Traceback" not in answer.content.decode()
        assert patch(root, plan).status_code == 200

    def test_whose_transaction_was_ended_for_sitting_idle_is_503_and_changes_nothing(
        self, bound: Callable[..., None], root: Client, plan: Plan, other: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shown = PlanRoute.shown

        def sit_idle(route: PlanRoute, row: Plan) -> dict[str, Any]:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                [pid] = cursor.fetchone()
            while not is_gone(other, pid):
                pass
            return shown(route, row)

        bound(statement=0, idle=0.1)
        monkeypatch.setattr(PlanRoute, "shown", sit_idle)
        answer = patch(root, plan)
        assert (answer.status_code, answer["Retry-After"]) == (503, "5")
        connection.close()
        monkeypatch.undo()
        plan.refresh_from_db()
        assert plan.weight_milli == 1_000

    def test_for_a_page_of_the_console_is_a_sentence_with_503(
        self, bound: Callable[..., None], root: Client, plan: Plan, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def slow(*args: Any) -> Any:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SELECT pg_sleep(60)")

        bound(statement=0.05, idle=0)
        monkeypatch.setattr(PlanAdmin, "get_queryset", slow)
        answer = root.get("/admin/tenants/plan/")
        assert (answer.status_code, answer["Retry-After"]) == (503, "5")
        assert "try again" in answer.content.decode()
        assert "Traceback" not in answer.content.decode()
