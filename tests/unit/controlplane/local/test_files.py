"""What local mode keeps in files: secrets, logs, the demo's keys, the model's record, and where all of it lies."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from controlplane.local import logs, model
from controlplane.local.children import Identity, read_pid
from controlplane.local.paths import SOCKET_DIR_MAX, Layout, write_private
from controlplane.local.secrets_file import load_or_make
from controlplane.local.seeding import merge

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(root=ROOT, state=tmp_path / "w")
    made.make()
    return made


class TestPaths:
    def test_keeps_private_files_private(self, tmp_path: Path) -> None:
        write_private(tmp_path / "demo.json", "{}")
        assert stat.S_IMODE((tmp_path / "demo.json").stat().st_mode) == 0o600

    def test_leaves_no_half_written_file_beside_it(self, tmp_path: Path) -> None:
        write_private(tmp_path / "run.json", "one")
        write_private(tmp_path / "run.json", "two")
        assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
        assert (tmp_path / "run.json").read_text() == "two"

    def test_leads_to_a_deep_clone_by_a_path_short_enough_for_sockets(self, tmp_path: Path) -> None:
        deep = Layout(root=ROOT, state=tmp_path / ("d" * 100) / ".weir")
        deep.make()
        try:
            assert len(str(deep.home / "run")) <= SOCKET_DIR_MAX
            (deep.home / "run" / "x").touch()
            assert (deep.state / "run" / "x").exists()
            deep.remove_short_path()  # as a platform that stops does
            assert not deep.home.is_symlink()
            deep.make()
            assert (deep.home / "run" / "x").exists()
        finally:
            deep.remove()
        assert not deep.home.is_symlink()

    @pytest.mark.parametrize("name", ["h#x", "w?y", "50%"])
    def test_leads_past_letters_that_urls_read_as_syntax(self, tmp_path: Path, name: str) -> None:
        odd = Layout(root=ROOT, state=tmp_path / name)
        odd.make()
        try:
            assert not set("?#%") & set(str(odd.home))
            assert odd.home.resolve() == odd.state.resolve()
        finally:
            odd.remove()

    def test_refuses_a_short_path_that_leads_elsewhere(self, tmp_path: Path) -> None:
        deep = Layout(root=ROOT, state=tmp_path / ("d" * 100) / ".weir")
        deep.home.symlink_to(tmp_path)
        try:
            with pytest.raises(FileExistsError, match="short path"):
                deep.make()
        finally:
            deep.home.unlink()


class TestSecrets:
    def test_stay_what_they_were(self, layout: Layout) -> None:
        assert load_or_make(layout=layout) == load_or_make(layout=layout)

    def test_are_long_enough_for_the_platform(self, layout: Layout) -> None:
        assert len(load_or_make(layout=layout).root) >= 32

    def test_say_that_a_damaged_file_is_damaged(self, layout: Layout) -> None:
        layout.secrets_file.write_text('{"root": "only"}')
        with pytest.raises(ValueError, match="is damaged"):
            load_or_make(layout=layout)


class TestDemoFile:
    def test_keeps_keys_that_an_earlier_seed_showed(self) -> None:
        before = {"api_key": "weir_old", "admin_password": "p", "base_url": "http://127.0.0.1:8080/v1"}
        seeded = {"api_key": None, "admin_password": None, "base_url": "http://127.0.0.1:8081/v1"}
        assert merge(before=before, seeded=seeded) == {
            "api_key": "weir_old",
            "admin_password": "p",
            "base_url": "http://127.0.0.1:8081/v1",
        }


class TestLogs:
    def test_moves_an_overlong_log_aside_without_taking_it_from_its_writer(self, tmp_path: Path) -> None:
        path = tmp_path / "gateway.log"
        with path.open("ab", buffering=0) as writer:
            writer.write(b"old\n" * 10)
            assert logs.rotate(path=path, bytes_max=20)
            writer.write(b"new\n")
        assert path.read_bytes() == b"new\n"
        assert (tmp_path / "gateway.log.1").read_bytes() == b"old\n" * 10

    def test_leaves_a_short_log_alone(self, tmp_path: Path) -> None:
        (tmp_path / "a.log").write_text("short")
        assert not logs.rotate(path=tmp_path / "a.log")

    def test_gives_the_last_lines(self, tmp_path: Path) -> None:
        (tmp_path / "a.log").write_text("\n".join(map(str, range(1000))))
        assert logs.tail(path=tmp_path / "a.log", lines=2) == ["998", "999"]
        assert logs.tail(path=tmp_path / "none.log", lines=2) == []


class TestIdentity:
    def test_knows_a_running_process(self) -> None:
        myself = Identity.of(pid=os.getpid())
        assert myself is not None
        assert myself.is_running()

    def test_tells_a_reused_pid_from_the_process_it_meant(self) -> None:
        assert not Identity(pid=os.getpid(), started=1).is_running()

    @pytest.mark.parametrize("text", ["", "[]", '{"pid": "x"}', '{"pid":1,"started":2,"signal":999,"deadline":1}'])
    def test_takes_a_broken_pid_file_for_none(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "x.pid.json").write_text(text)
        assert read_pid(path=tmp_path / "x.pid.json") is None


class TestCommittedModel:
    def test_is_what_its_manifest_names(self) -> None:
        directory = model.committed_directory(root=ROOT)
        files = json.loads((directory / "manifest.json").read_text())["files"]
        weightless = {name for name in files if name != "model.safetensors"}
        assert {path.name for path in directory.iterdir()} == weightless | {"manifest.json", "README.md"}
        damaged = [name for name in weightless if model.sha256_of(path=directory / name) != files[name]]
        assert damaged == []

    def test_finds_a_changed_file_of_a_converted_model(self, tmp_path: Path) -> None:
        committed, converted = tmp_path / "committed", tmp_path / "converted"
        for directory in (committed, converted):
            directory.mkdir()
        (converted / "a").write_text("right")
        digest = model.sha256_of(path=converted / "a")
        (committed / "manifest.json").write_text(json.dumps({"files": {"a": digest}}))
        assert model.find_damage(directory=converted, committed=committed) is None
        (converted / "a").write_text("wrong")
        assert model.find_damage(directory=converted, committed=committed) == "a has another hash"
        (converted / "a").unlink()
        assert model.find_damage(directory=converted, committed=committed) == "a is missing"
