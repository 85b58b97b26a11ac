"""`make ps` says what is; that nothing runs is an answer, not a failure."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from django.core.management import call_command

from controlplane.local.paths import Layout
from controlplane.local.supervisor import hold_lock


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    monkeypatch.setenv("WEIR_HOME", str(tmp_path / "state"))
    return Layout.of_clone()


class TestPs:
    def test_says_that_nothing_runs(self, layout: Layout, capsys: pytest.CaptureFixture[str]) -> None:
        call_command("ps")
        assert capsys.readouterr().out == "Nothing runs here; `make up` starts it.\n"

    def test_says_what_to_do_about_a_child_that_was_given_up(
        self, layout: Layout, capsys: pytest.CaptureFixture[str]
    ) -> None:
        layout.make()
        missing = {
            "name": "beat",
            "role": "beat",
            "pid": None,
            "port": None,
            "state": "failed",
            "deaths": 6,
            "reason": "",
        }
        layout.run_file.write_text(json.dumps({"processes": [], "missing": [missing]}))
        lock = hold_lock(layout=layout)
        call_command("ps")
        os.close(lock)
        said = capsys.readouterr().out
        assert "died 6 times in a row" in said
        assert "make logs NAME=…" in said
