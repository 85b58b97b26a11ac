"""Where the gateway listens, and what the person at the terminal is told of it. Nothing is started here."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.local import plan
from controlplane.local.paths import Layout
from controlplane.local.ports import PortBook
from controlplane.local.secrets_file import load_or_make

ROOT = Path(__file__).resolve().parents[4]
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


def make_plan(layout: Layout, **settings: str) -> plan.Plan:
    return plan.make_plan(
        layout=layout,
        settings={**ELSEWHERE, **settings},
        secrets=load_or_make(layout=layout),
        engine="simulated",
        engine_python=None,
    )


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The ports of other programs: empty until a test fills it, whatever this machine runs."""
    ports: set[int] = set()

    def find(*, preferred: int) -> int:
        return next(port for port in range(preferred, preferred + 100) if port not in ports)

    monkeypatch.setattr(plan, "find_gateway_port", find)
    monkeypatch.setattr(plan, "find_refusal", lambda _: None)
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
        made = make_plan(layout)
        assert (made.gateway_port, made.notes) == (port, notes)
        assert made.env["WEIR_PORT"] == str(port)

    def test_that_was_asked_for_needs_no_word_and_is_kept(self, layout: Layout, taken: set[int]) -> None:
        asked, after = make_plan(layout, PORT="9000"), make_plan(layout)
        assert (asked.gateway_port, asked.notes) == (9000, ())
        assert after.gateway_port == 9000
        assert after.notes == ("the gateway listens on 9000, as it did before: PORT=… moves it",)
