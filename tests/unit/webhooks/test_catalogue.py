"""Every event that the code records is known by name and documented."""

import ast
from pathlib import Path

from tenants.webhooks.catalogue import EVENTS, TEST, table
from tenants.webhooks.selectors import is_filter

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("platform", "tenants", "safety", "billing")
RECORDERS = {"record", "tell", "_tell", "_move", "OutboxEvent"}


def _recorded() -> dict[str, str]:
    """Names of events in the first two arguments of a recorder, and where."""
    found: dict[str, str] = {}
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            if "migrations" in path.parts:
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call):
                    continue
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if called not in RECORDERS:
                    continue
                texts = [
                    each.value
                    for argument in [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg == "name")]
                    for each in ast.walk(argument)
                    if isinstance(each, ast.Constant) and isinstance(each.value, str)
                ]
                found |= {text: f"{path.relative_to(ROOT)}:{node.lineno}" for text in texts if _is_name(text)}
    return found


def _is_name(text: str) -> bool:
    family, dot, what = text.partition(".")
    return bool(dot) and family.isidentifier() and what.replace("_", "").isalpha()


class TestCatalogue:
    def test_knows_every_event_that_is_recorded(self) -> None:
        recorded = _recorded()
        assert {"tenant.suspended", "key.revoked", "limit.changed", "webhook.disabled"} <= recorded.keys()
        assert {name: where for name, where in recorded.items() if name not in EVENTS} == {}

    def test_names_no_event_that_is_never_recorded(self) -> None:
        assert set(EVENTS) - _recorded().keys() - {TEST} == set()

    def test_is_the_documentation(self) -> None:
        assert table() in (ROOT / "docs" / "events.md").read_text(encoding="utf-8")


class TestFilter:
    def test_takes_what_can_match_and_refuses_a_slip(self) -> None:
        assert all(is_filter(text) for text in ("*", "key.*", "key.revoked", "webhook.*", TEST))
        assert not any(
            is_filter(text)
            for text in ("plan.changed", "operator.*", "", "key", "key.", "kye.revoked", "*.revoked", "key.**", ".*")
        )
