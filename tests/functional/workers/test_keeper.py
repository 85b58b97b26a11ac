"""What stands between worker and engine: no process and no file of the engine outlives it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from workers.engines import keeper

# Says where its temporary files go, leaves one there, and waits to be ended.
ENGINE = """
import os, pathlib, sys, tempfile, time
here = pathlib.Path(tempfile.gettempdir())
(here / "left").touch()
print(here, flush=True, file=sys.stderr)
time.sleep(60)
"""


def start(tmp: Path) -> tuple[subprocess.Popen[str], int, Path]:
    """A keeper with its engine. Returns it, the engine's pid and the engine's directory of temporary files."""
    process = subprocess.Popen(
        [sys.executable, "-S", str(Path(keeper.__file__)), sys.executable, "-c", ENGINE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp), "WEIR_KEEPER_SECONDS": "5"},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    return process, int(process.stdout.readline()), Path(process.stderr.readline().strip())


class TestKeeper:
    @pytest.mark.parametrize("how", ["sigterm", "the worker goes"])
    def test_leaves_no_engine_and_no_temporary_file(self, tmp_path: Path, how: str) -> None:
        process, engine, scratch = start(tmp_path)
        assert (scratch / "left").exists()
        if how == "sigterm":
            process.terminate()
        process.communicate(timeout=20)
        assert not scratch.exists()
        with pytest.raises(ProcessLookupError):
            os.kill(engine, 0)

    def test_keeps_temporary_files_where_a_sockets_path_fits(self, tmp_path: Path) -> None:
        deep = tmp_path / ("deep" * 20)
        deep.mkdir()
        process, _, scratch = start(deep)
        process.communicate(timeout=20)
        assert len(str(scratch)) + 37 <= 107
        assert not scratch.exists()

    def test_removes_what_a_killed_one_left(self, tmp_path: Path) -> None:
        killed, _, left = start(tmp_path)
        killed.kill()
        killed.communicate(timeout=20)
        assert left.exists()
        running, _, kept = start(tmp_path)
        another, _, _ = start(tmp_path)
        assert not left.exists()
        assert kept.exists()
        for process in (running, another):
            process.communicate(timeout=20)
        assert list(tmp_path.iterdir()) == []
