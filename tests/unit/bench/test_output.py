"""The one format of all benches."""

import json
from io import StringIO

import pytest
from rich.console import Console

from infra.bench.output import Measure, case_text, print_table


class TestMeasure:
    def test_is_one_json_object_with_the_agreed_keys_in_order(self) -> None:
        line = Measure(
            bench="overhead",
            case={"engine": "vllm", "concurrency": 8},
            metric="throughput",
            value=0.98,
            unit="ratio",
            peer="the engine directly",
            peer_value=1.0,
        ).as_line()
        assert "\n" not in line
        assert list(json.loads(line)) == ["bench", "case", "metric", "value", "unit", "peer", "peer_value", "ratio"]
        assert json.loads(line)["case"] == "engine=vllm,concurrency=8"
        assert json.loads(line)["ratio"] == 0.98

    def test_has_nulls_where_there_is_no_peer(self) -> None:
        document = json.loads(Measure(bench="b", metric="m", value=1, unit="s").as_line())
        assert (document["case"], document["peer"], document["peer_value"], document["ratio"]) == ("", None, None, None)

    def test_takes_the_ratio_of_whole_quantities_when_its_value_is_a_difference(self) -> None:
        measure = Measure(bench="b", metric="added_ms", value=5, unit="ms", peer="p", peer_value=50, whole=55)
        assert measure.ratio == pytest.approx(1.1)

    def test_has_no_ratio_to_a_peer_that_measured_nothing(self) -> None:
        assert Measure(bench="b", metric="m", value=1, unit="s", peer="p", peer_value=0).ratio is None


class TestCaseText:
    @pytest.mark.parametrize("case", [{"a": "1,2"}, {"a=b": 1}, {"a": "x\ny"}])
    def test_refuses_what_could_not_be_read_back(self, case: dict[str, str]) -> None:
        with pytest.raises(ValueError, match="cannot stand in a case"):
            case_text(case)


class TestPrintTable:
    def test_shows_every_measure(self) -> None:
        console = Console(width=160, file=StringIO())
        measures = [Measure(bench="b", metric=name, value=1234.5, unit="tokens/s") for name in ("first", "second")]
        with console.capture() as captured:
            print_table(measures, console=console)
        text = captured.get()
        assert "first" in text
        assert "second" in text
        assert text.count("1,234") == 2
