"""`make ps` says what is; that nothing runs is an answer, not a failure."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from django.core.management import call_command

from controlplane.local.paths import Layout
from controlplane.local.supervisor import hold_lock, read_report


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

    def test_says_of_a_process_that_has_ended_that_it_is_gone(
        self, layout: Layout, capsys: pytest.CaptureFixture[str]
    ) -> None:
        layout.make()
        row = {"name": "beat", "role": "beat", "pid": ended(), "port": None, "state": "serving", "restarts": 3}
        row |= {"deaths": 0, "restarted_at": time.monotonic() - 190}
        layout.run_file.write_text(json.dumps({"processes": [row], "missing": []}))
        lock = hold_lock(layout=layout)
        call_command("ps")
        os.close(lock)
        said = capsys.readouterr().out
        assert "gone" in said
        assert "serving" not in said
        assert re.search(r" 3, last 0:03:1\d ago", said.splitlines()[1])
        assert "died" not in said


def ended() -> int:
    """The pid of a process that is over."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


class TestReport:
    """What a worker says of its engine."""

    def test_is_believed_while_the_engine_runs(self, tmp_path: Path) -> None:
        path = tmp_path / "worker.engine.json"
        path.write_text(json.dumps({"pid": os.getpid(), "state": "loading", "restarts": 2}))
        assert read_report(path=path) == {"pid": os.getpid(), "state": "loading", "restarts": 2}

    def test_is_not_believed_once_the_engine_has_ended(self, tmp_path: Path) -> None:
        path = tmp_path / "worker.engine.json"
        path.write_text(json.dumps({"pid": ended(), "state": "serving", "restarts": 2}))
        assert read_report(path=path) == {"pid": None, "state": "down", "restarts": 2}

    @pytest.mark.parametrize("text", [None, "", "{", "[]", '{"pid": 1}', '{"pid": "x", "state": "", "restarts": 0}'])
    def test_that_cannot_be_read_is_an_engine_that_is_down(self, tmp_path: Path, text: str | None) -> None:
        path = tmp_path / "worker.engine.json"
        if text is not None:
            path.write_text(text)
        assert read_report(path=path) == {"pid": None, "state": "down"}
