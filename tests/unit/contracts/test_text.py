"""What a client sent, shown back: printable, bounded, never a Python literal."""

import ast
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from contracts.text import SHOWN_MAX, shown

ROOT = Path(__file__).parents[3]


class TestShown:
    def test_shows_words_as_they_are(self) -> None:
        assert shown("smollm2-135m") == "`smollm2-135m`"
        assert shown("größe 东京 👍") == "`größe 东京 👍`"
        assert shown('it\'s "so"') == '`it\'s "so"`'

    def test_replaces_what_cannot_be_seen(self) -> None:
        assert shown("a\x00b\nc\x1b[31m\u202e\ud800") == "`a\ufffdb\ufffdc\ufffd[31m\ufffd\ufffd`"

    def test_leaves_out_the_rest_of_a_long_text(self) -> None:
        assert shown("x" * SHOWN_MAX) == "`" + "x" * SHOWN_MAX + "`"
        assert shown("x" * 10_000, most=3) == "`xxx…`"

    @given(st.text(st.characters()))
    def test_is_always_short_and_printable(self, text: str) -> None:
        found = shown(text)
        assert found.isprintable()
        assert len(found) <= SHOWN_MAX + 3
        found.encode()


class TestMessages:
    def test_spell_no_value_as_python_does(self) -> None:
        """`{value!r}` in a message for a client: `'x\\x00'` is our language, not the client's."""
        found = []
        for room in ("platform", "tenants", "safety", "billing", "workers"):
            for path in sorted((ROOT / room).rglob("*.py")):
                relative = path.relative_to(ROOT).as_posix()
                if "/management/" in relative or "/local/" in relative:
                    continue  # a terminal's, for who runs the platform
                for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                    if _is_client_error(node):
                        spelled = [one for one in ast.walk(node) if isinstance(one, ast.FormattedValue)]
                        found += [f"{relative}:{one.lineno}" for one in spelled if one.conversion == ord("r")]
        assert sorted(set(found)) == []


_CLIENTS = {
    "InvalidRequest", "NotFound", "Gone", "Conflict", "Unprocessable", "PermissionDenied", "AuthFailed", "Unavailable",
    "ValidationError", "RuleError", "LimitExceeded",
}  # fmt: skip


def _is_client_error(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CLIENTS
