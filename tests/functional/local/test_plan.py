"""Which processes are planned, and what they are told. Nothing is started here."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from controlplane.local.paths import Layout
from controlplane.local.plan import Plan, PlanFailed, choose_engine, make_plan
from controlplane.local.ports import PortBook
from controlplane.local.secrets_file import load_or_make

ROOT = Path(__file__).resolve().parents[3]
ELSEWHERE = {
    "DATABASE_URL": "postgresql://u:p@db:5432/weir",
    "REDIS_URL": "redis://cache:6379/0",
    "S3_URL": "https://key:secret@objects/weir",
}


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(root=ROOT, state=tmp_path / "w")
    made.make()
    return made


def plan(layout: Layout, settings: dict[str, str], engine: str = "simulated") -> Plan:
    return make_plan(
        layout=layout, settings=settings, secrets=load_or_make(layout=layout), engine=engine, engine_python=None
    )


class TestEngine:
    def test_is_vllm_unless_something_else_is_asked_for(self) -> None:
        assert choose_engine(settings={}) == "vllm"
        assert choose_engine(settings={"ENGINE": "simulated"}) == "simulated"

    def test_is_elsewhere_when_its_url_is_given(self) -> None:
        assert choose_engine(settings={"ENGINE_URL": "http://gpu:8000", "ENGINE": "simulated"}) == "openai"

    def test_must_be_known(self) -> None:
        with pytest.raises(PlanFailed, match="ENGINE=tgi is not known"):
            choose_engine(settings={"ENGINE": "tgi"})


class TestPlan:
    def test_starts_no_store_whose_url_is_given(self, layout: Layout) -> None:
        made = plan(layout, ELSEWHERE)
        assert {spec.role for spec in made.specs} == {
            *("job", "worker", "meter", "settler", "gateway", "celery", "beat"),
        }
        assert {name: made.env[name] for name in ELSEWHERE} == ELSEWHERE

    def test_starts_every_store_whose_url_is_not(self, layout: Layout) -> None:
        given = {"DATABASE_URL": ELSEWHERE["DATABASE_URL"]}
        roles = {spec.role for spec in plan(layout, given).specs}
        assert {"valkey", "s3"} < roles
        assert "postgres" not in roles

    def test_keeps_its_ports(self, layout: Layout) -> None:
        given = {"DATABASE_URL": ELSEWHERE["DATABASE_URL"]}
        first, second = (
            {spec.name: spec.port for spec in plan(layout, given).specs if spec.name != "gateway"} for _ in range(2)
        )
        assert first == second

    def test_waits_only_for_what_it_starts(self, layout: Layout) -> None:
        made = plan(layout, ELSEWHERE)
        names = {spec.name for spec in made.specs}
        assert all(set(spec.after) <= names for spec in made.specs)

    def test_stops_the_door_first_and_stores_last(self, layout: Layout) -> None:
        given = {"DATABASE_URL": ELSEWHERE["DATABASE_URL"]}
        waves = {spec.role: spec.wave for spec in plan(layout, given).specs}
        assert waves["gateway"] > waves["worker"] > waves["meter"] > waves["valkey"]
        assert waves["celery"] == waves["beat"] == waves["gateway"], "what is slow to stop stops at the same time"

    def test_tells_every_process_of_the_platform_the_same(self, layout: Layout) -> None:
        made = plan(layout, ELSEWHERE)
        assert all(spec.env == made.env for spec in made.specs)
        assert made.env["WEIR_HOME"] == str(layout.home)
        assert made.env["WEIR_ENGINE"] == "simulated"
        assert made.env["CLICKHOUSE_URL"].startswith("chdb+unix:///")

    def test_takes_a_secret_that_is_given(self, layout: Layout) -> None:
        assert plan(layout, {**ELSEWHERE, "WEIR_SECRET": "s" * 40}).env["WEIR_SECRET"] == "s" * 40

    @pytest.mark.parametrize("asked", ["http", "80x", "-1", "0", "65536", "70000", "٣", "1" * 5000])
    def test_refuses_a_port_that_is_none(self, layout: Layout, asked: str) -> None:
        with pytest.raises(PlanFailed, match=f"PORT={asked} is not a port"):
            plan(layout, {**ELSEWHERE, "PORT": asked})

    def test_names_who_has_the_port(self, layout: Layout) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with pytest.raises(PlanFailed, match=rf"PORT={port} is taken by .*\(process {os.getpid()}\)"):
                plan(layout, {**ELSEWHERE, "PORT": str(port)})

    def test_watches_every_process_that_listens_nowhere(self, layout: Layout) -> None:
        watched = {spec.name for spec in plan(layout, ELSEWHERE).specs if spec.pulse_file is not None}
        assert watched == {"settler", "celery", "beat"}

    def test_has_one_door_to_the_engine_elsewhere(self, layout: Layout) -> None:
        made = plan(layout, {**ELSEWHERE, "ENGINE_URL": "http://gpu:8000"}, engine="openai")
        worker = next(spec for spec in made.specs if spec.role == "worker")
        assert worker.reports == ()
        assert made.env["ENGINE_URL"] == "http://gpu:8000"


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The ports of other programs: empty until a test fills it, whatever this machine runs."""
    ports: set[int] = set()

    def find(*, preferred: int) -> int:
        return next(port for port in range(preferred, preferred + 100) if port not in ports)

    monkeypatch.setattr("controlplane.local.plan.find_gateway_port", find)
    monkeypatch.setattr("controlplane.local.plan.find_refusal", lambda _: None)
    return ports


class TestGatewayPort:
    @pytest.mark.parametrize(
        ("before", "others", "port", "notes"),
        [
            pytest.param(None, (), 8080, (), id="the usual one"),
            pytest.param(8080, (), 8080, (), id="the usual one again"),
            pytest.param(
                None,
                (8080, 8081),
                8082,
                ("the gateway listens on 8082: 8080 is another program's",),
                id="the next one",
            ),
            pytest.param(
                9000,
                (),
                9000,
                ("the gateway listens on 9000, as it did before: PORT=… moves it",),
                id="the one it had",
            ),
            pytest.param(
                9000,
                (9000,),
                9001,
                ("the gateway listens on 9001: 9000 is another program's",),
                id="the one after what it had",
            ),
            pytest.param(
                8079,
                (8079,),
                8080,
                ("the gateway listens on 8080: 8079 is another program's",),
                id="the usual one after what it had",
            ),
        ],
    )
    def test_is_explained_where_it_is_not_what_one_expects(
        self,
        layout: Layout,
        taken: set[int],
        before: int | None,
        others: tuple[int, ...],
        port: int,
        notes: tuple[str, ...],
    ) -> None:
        if before is not None:
            PortBook(path=layout.ports_file).keep(name="gateway", port=before)
        taken.update(others)
        made = plan(layout, ELSEWHERE)
        assert (made.gateway_port, made.notes) == (port, notes)
        assert made.env["WEIR_PORT"] == str(port)

    def test_that_was_asked_for_needs_no_word_and_is_kept(self, layout: Layout, taken: set[int]) -> None:
        asked, after = plan(layout, {**ELSEWHERE, "PORT": "9000"}), plan(layout, ELSEWHERE)
        assert (asked.gateway_port, asked.notes) == (9000, ())
        assert after.gateway_port == 9000
        assert after.notes == ("the gateway listens on 9000, as it did before: PORT=… moves it",)
