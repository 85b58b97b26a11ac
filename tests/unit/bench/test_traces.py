"""Public traces, read in both forms."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from infra.bench.traces import NoTrace, Row, made_trace, read_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,374,44\n2023-11-16 18:17:05.4799600,9,0\n"


class TestReadTrace:
    def test_reads_azures_and_leaves_out_what_has_no_answer(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_text(AZURE + "2023-11-16 18:17:04.4799600,396,109\n")
        first, second = read_trace(path, rows_max=10)
        assert first == Row(0.0, 374, 44)
        assert (round(second.at, 3), second.prompt, second.output) == (0.5, 396, 109)

    def test_reads_mooncakes_zipped_and_stops_at_the_wanted_rows(self, tmp_path: Path) -> None:
        rows = [
            {"timestamp": at, "input_length": 10 + at, "output_length": 5, "hash_ids": [1]} for at in (27, 30, 3_027)
        ]
        path = tmp_path / "m.jsonl.gz"
        path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
        assert read_trace(path, rows_max=2) == [Row(0.0, 37, 5), Row(pytest.approx(0.003), 40, 5)]
        assert len(read_trace(path, rows_max=10)) == 3

    @pytest.mark.parametrize("text", ["", "a,b\n1,2\n", '{"timestamp": 1}\n', AZURE.splitlines()[0] + "\n"])
    def test_refuses_what_is_no_trace(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "x.csv"
        path.write_text(text)
        with pytest.raises(NoTrace, match=r"x\.csv"):
            read_trace(path, rows_max=10)


class TestMadeTrace:
    def test_is_the_same_for_the_same_seed(self) -> None:
        assert made_trace(seed=1, rows=50) == made_trace(seed=1, rows=50)
        assert made_trace(seed=1, rows=50) != made_trace(seed=2, rows=50)
