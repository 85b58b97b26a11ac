"""Every threat that is promised to be tried has a test of its number: `test_t04_…` tries T4."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
TRIED = re.compile(r"^ *(?:async )?def test_t(\d\d)_", re.MULTILINE)
PROMISED = {*range(1, 12), 13, *range(19, 23), *range(24, 28), 30, 31, 33, 35}


@pytest.fixture(scope="module")
def tried() -> set[int]:
    sources = [path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py")]
    return {int(number) for source in sources for number in TRIED.findall(source)}


class TestThreats:
    def test_promised_to_be_tried_are(self, tried: set[int]) -> None:
        assert PROMISED - tried == set()

    def test_that_are_tried_have_their_place_in_the_list(self, tried: set[int]) -> None:
        listed = (TESTS / "functional" / "threats" / "README.md").read_text(encoding="utf-8")
        assert [number for number in sorted(tried) if not re.search(rf"\bT{number}\b", listed)] == []
