"""Values on their way to and from ClickHouse."""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest

from stores.clickhouse_text import parameter_text, read_result, rows_text


class TestParameterText:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (-5, "-5"),
            ("plain", "plain"),
            ("it's\n\\", "it\\'s\\n\\\\"),
            (["a", "b'"], "['a','b\\'']"),
            ([1, 2], "[1,2]"),
            ([], "[]"),
            (True, "1"),
        ],
    )
    def test_is_escaped_for_its_type(self, value: object, text: str) -> None:
        assert parameter_text(value) == text

    def test_refuses_a_float(self) -> None:
        with pytest.raises(TypeError, match="float"):
            parameter_text(0.1)


class TestRowsText:
    def test_quotes_decimals_and_turns_times_to_utc(self) -> None:
        at = datetime(2026, 1, 1, 5, 45, 0, 1_000, tzinfo=timezone(timedelta(hours=5, minutes=45)))
        assert rows_text([(Decimal("1E-9"), at, {3: 4}, ("x",), True)]) == (
            '["0.000000001","2026-01-01 00:00:00.001000",{"3":4},["x"],true]'
        )

    def test_refuses_what_it_has_no_text_for(self) -> None:
        with pytest.raises(TypeError):
            rows_text([(object(),)])

    def test_puts_each_row_on_a_line(self) -> None:
        assert rows_text([("a\nb",), ("c",)]) == '["a\\nb"]\n["c"]'


class TestReadResult:
    def test_revives_values_by_their_column_type(self) -> None:
        data = (
            b'["cost", "at", "histogram", "labels", "gone", "n"]\n'
            b'["Decimal(38, 12)", "DateTime64(3, \'UTC\')", "Map(UInt16, UInt64)", "Array(LowCardinality(String))", '
            b'"Nullable(DateTime)", "UInt64"]\n'
            b'["0.000000000012", "2026-01-01 00:00:00.001", {"3":4}, ["a"], null, 18446744073709551615]\n'
        )
        assert read_result(data) == [
            {
                "cost": Decimal("0.000000000012"),
                "at": datetime(2026, 1, 1, 0, 0, 0, 1_000, tzinfo=UTC),
                "histogram": {3: 4},
                "labels": ["a"],
                "gone": None,
                "n": 2**64 - 1,
            }
        ]

    def test_is_empty_for_a_statement_without_an_answer(self) -> None:
        assert read_result(b"") == []
