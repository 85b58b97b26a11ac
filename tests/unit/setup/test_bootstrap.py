"""What the bootstrap hands from pip to uv, what it does without a network, and the locks it installs from."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from infra.setup import bootstrap
from infra.setup.sdk import JAVASCRIPT

REQUIREMENTS = bootstrap.REQUIREMENTS
LOCKS = sorted(path for path in REQUIREMENTS.glob("*.txt") if not path.stem.endswith("-overrides"))

# What uv 0.13.9 said where nothing listens on the registry's port, and with --offline where its cache lacks something.
UNREACHABLE = """error: Failed to fetch: http://127.0.0.1:9/simple/annotated-types/
  cause: error sending request for url (http://127.0.0.1:9/simple/annotated-types/)
  cause: client error (Connect)
  cause: tcp connect error
  cause: Connection refused (os error 111)"""
NOT_CACHED = """error: No solution found when resolving dependencies
  cause: Because annotated-types was not found in the cache and you require annotated-types==0.8.0, we can \
conclude that your requirements are unsatisfiable.

hint: Packages were unavailable because the network was disabled. When the network is disabled, registry packages may \
only be read from the cache."""
HALF_CACHED = """error: Failed to download `annotated-types==0.8.0`
  cause: Network connectivity is disabled, but the requested data wasn't found in the cache: annotated_types.whl"""
FORBIDDEN = """error: No solution found when resolving dependencies
  cause: Because annotated-types was not found in the package registry and you require annotated-types==0.8.0, we can \
conclude that your requirements are unsatisfiable.

hint: An index (http://127.0.0.1:9/simple) returned a 403 Forbidden error. Check that the index URL is correct."""
DISK_FULL = "error: failed to write to /v/lib/x.py: No space left on device (os error 28)"
HASHES_DIFFER = "error: Hash mismatch for `annotated-types==0.8.0`"

# In uv's place: notes how it is called, makes an interpreter for `venv`, says what is in a file where it is not empty.
FAKE_UV = """#!/bin/sh
cd "$(dirname "$0")"
echo "$@" >> calls
[ "$1" = venv ] && mkdir -p "$4/bin" && touch "$4/bin/python" && exit 0
said=online
for word in "$@"; do [ "$word" = --offline ] && said=offline; done
[ -s "$said" ] || exit 0
cat "$said" >&2
exit 2
"""


class TestUvSettings:
    def test_hands_over_directories_of_wheels(self, tmp_path: Path) -> None:
        settings = bootstrap.uv_settings(pip={"find-links": f"{tmp_path} /no/such/place"}, environ={})
        assert settings["UV_FIND_LINKS"] == str(tmp_path)

    def test_hands_over_a_mirror(self) -> None:
        pip = {"index-url": "https://mirror.example/simple", "extra-index-url": "file:///x https://more.example/simple"}
        settings = bootstrap.uv_settings(pip=pip, environ={})
        assert settings["UV_DEFAULT_INDEX"] == "https://mirror.example/simple"
        assert settings["UV_INDEX"] == "https://more.example/simple"

    def test_trusts_whom_pip_trusts(self, tmp_path: Path) -> None:
        certificate = tmp_path / "ca.pem"
        certificate.touch()
        settings = bootstrap.uv_settings(pip={"cert": str(certificate)}, environ={})
        assert settings["SSL_CERT_FILE"] == str(certificate)
        assert settings["UV_SYSTEM_CERTS"] == "1"

    def test_leaves_what_is_set_already(self) -> None:
        environ = {"UV_DEFAULT_INDEX": "https://mine.example", "UV_SYSTEM_CERTS": "0"}
        assert bootstrap.uv_settings(pip={"index-url": "https://other.example"}, environ=environ) == {}


class TestFailures:
    @pytest.mark.parametrize(
        ("said", "sentence"),
        [
            (
                "error: failed to write: No space left on device (os error 28)",
                f"MB free in {re.escape(str(bootstrap.ROOT))}",
            ),
            ("error: dns error: failed to lookup address information", "no package registry answers"),
            (
                "WARNING: Retrying after connection broken by NewConnectionError(Errno 111): /simple/uv/",
                "no package registry answers and not everything is cached: check the network",
            ),
            ("error: Hash mismatch for x==1", "does not have the hash"),
        ],
    )
    def test_are_said_in_one_sentence(self, said: str, sentence: str) -> None:
        with pytest.raises(bootstrap.SetupFailed, match=sentence):
            bootstrap.run(["/bin/sh", "-c", f"echo '{said}' >&2; exit 2"], log="test")

    def test_say_how_much_disk_is_missing(self, tmp_path: Path) -> None:
        huge = bootstrap.Environment("control plane", REQUIREMENTS / "control.txt", tmp_path / "venv", 10**18)
        with pytest.raises(bootstrap.SetupFailed, match=r"needs .* GB in"):
            bootstrap.check_disk(huge)

    @pytest.mark.parametrize("flags", ["fma sse4_2", "avx fma avx2_vnni"])
    def test_name_what_to_do_without_avx2(self, tmp_path: Path, flags: str) -> None:
        (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : {flags}\n")
        with pytest.raises(bootstrap.SetupFailed, match=r"no AVX2,.*ENGINE=simulated make up.*ENGINE_URL"):
            bootstrap.check_engine_machine(cpuinfo=tmp_path / "cpuinfo")

    @pytest.mark.parametrize("flags", ["avx avx2 fma", "avx avx2 avx512f avx512_bf16"])
    def test_take_a_processor_that_the_engine_has_kernels_for(self, tmp_path: Path, flags: str) -> None:
        (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : {flags}\n")
        bootstrap.check_engine_machine(cpuinfo=tmp_path / "cpuinfo")

    @pytest.mark.parametrize("sign", [":", '"', "$", "`", "\\", "\n"])
    def test_name_a_path_that_cannot_be_used(self, sign: str) -> None:
        with pytest.raises(bootstrap.SetupFailed, match="move the clone"):
            bootstrap.check_path(Path(f"/home/a{sign}b/weir"))

    def test_leave_other_odd_paths_alone(self) -> None:
        bootstrap.check_path(Path("/home/it's é 日本 %d #h,;&{x}[b]*(p)/weir"))

    def test_say_where_a_cache_may_lie_instead(self) -> None:
        said = bootstrap.explain(OSError(30, "Read-only file system", "/srv/a/.cache"))
        assert said.startswith("/srv/a/.cache: ")
        assert "XDG_CACHE_HOME" in said

    def test_take_the_installer_along_when_the_setup_is_killed(self, tmp_path: Path) -> None:
        """Else it would go on writing beside the one that the next setup starts."""
        note = tmp_path / "pid"
        program = f"from infra.setup import bootstrap; bootstrap.run(['/bin/sh', '-c', 'echo $$ > {note}.part; "
        program += f"mv {note}.part {note}; exec sleep 600'], log='x')"
        setup = subprocess.Popen([sys.executable, "-c", program], cwd=bootstrap.ROOT)
        try:
            while not note.exists():
                assert setup.poll() is None
            installer = os.pidfd_open(int(note.read_text()))
        finally:
            setup.kill()
            setup.wait(timeout=10)
        try:
            assert select.select([installer], [], [], 10)[0], "it still runs"
        finally:
            os.close(installer)


class TestStamp:
    def test_counts_an_environment_as_made_only_from_this_lock(self, tmp_path: Path) -> None:
        lock = tmp_path / "lock.txt"
        lock.write_text("a==1")
        made = bootstrap.Environment("x", lock, tmp_path / "venv", 0)
        (tmp_path / "venv" / "bin").mkdir(parents=True)
        made.python.touch()
        assert not made.is_made()
        (tmp_path / "venv" / bootstrap.STAMP).write_text(made.key)
        assert made.is_made()
        lock.write_text("a==2")
        assert not made.is_made()


class TestProgress:
    @pytest.mark.parametrize(
        ("size", "said"), [(12_400_000, "12 MB"), (100_000_001, "0.1 GB"), (4_260_000_000, "4.3 GB"), (0, "0 MB")]
    )
    def test_says_what_is_done_and_then_its_size_and_time(
        self, size: int, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seconds = iter((1_000.0, 1_083.4))
        monkeypatch.setattr(bootstrap, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
        with bootstrap._step("control plane: 7 packages") as done:
            assert capsys.readouterr().err == "  … control plane: 7 packages\n"
            done(size)
        captured = capsys.readouterr()
        assert captured.err == f"  ✓ control plane: 7 packages, {said}, 83 s\n"
        assert captured.out == ""  # there --print-python writes

    def test_is_said_of_an_environment_that_is_made(self, machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
        machine.says()
        bootstrap.ensure(machine.environment)
        began, ended = capsys.readouterr().err.splitlines()
        assert began == "  … control plane: 1 packages"
        assert re.fullmatch(r"  ✓ control plane: 1 packages, \d+ MB, \d+ s", ended)
        bootstrap.ensure(machine.environment)
        assert capsys.readouterr().err == ""  # nothing is done


@dataclass(frozen=True)
class Machine:
    """A user's machine with an installer that says what it is told to."""

    folder: Path

    @property
    def environment(self) -> bootstrap.Environment:
        return bootstrap.Environment("control plane", self.folder / "lock.txt", self.folder / "venv", 0)

    def says(self, *, online: str = "", offline: str = "") -> None:
        """An empty word = it succeeds."""
        (self.folder / "online").write_text(online)
        (self.folder / "offline").write_text(offline)

    def syncs(self) -> list[list[str]]:
        """How the installer was called, but to make the environment."""
        calls = [line.split() for line in (self.folder / "calls").read_text().splitlines()]
        return [call for call in calls if call[:2] == ["pip", "sync"]]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    uv = tmp_path / "uv"
    uv.write_text(FAKE_UV)
    uv.chmod(0o755)
    (tmp_path / "lock.txt").write_text("annotated-types==0.8.0\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(bootstrap, "_ensure_uv", lambda: uv)
    monkeypatch.setattr(bootstrap, "_read_pip_settings", dict)
    return Machine(tmp_path)


class TestWithoutNetwork:
    def test_installs_from_the_cache(self, machine: Machine) -> None:
        machine.says(online=UNREACHABLE)
        bootstrap.ensure(machine.environment)
        online, offline = machine.syncs()
        assert "--offline" not in online
        assert offline == [*online, "--offline"]
        assert "--require-hashes" in offline
        assert machine.environment.is_made()

    def test_asks_the_registry_alone_where_it_answers(self, machine: Machine) -> None:
        machine.says(offline=NOT_CACHED)
        bootstrap.ensure(machine.environment)
        assert len(machine.syncs()) == 1

    @pytest.mark.parametrize("offline", [NOT_CACHED, HALF_CACHED], ids=["nothing cached", "half of it cached"])
    def test_says_in_one_sentence_what_to_do_where_something_is_not_cached(
        self, machine: Machine, offline: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        machine.says(online=UNREACHABLE, offline=offline)
        monkeypatch.setattr(bootstrap, "control_environment", lambda: machine.environment)
        monkeypatch.setattr(sys, "argv", ["bootstrap.py", "control"])
        mask = os.umask(0o022)
        try:
            assert bootstrap.main() == 1
        finally:
            os.umask(mask)
        assert capsys.readouterr().err.splitlines()[-1] == (
            "setup: the packages of the control plane are not cached here and no registry answers: "
            "check the network, or pip's index-url and cert settings, and run it again"
        )
        assert not machine.environment.is_made()

    @pytest.mark.parametrize(
        ("online", "sentence"),
        [
            (DISK_FULL, "the disk is full"),
            ("error: failed to create /v: Permission denied (os error 13)", "a folder cannot be written"),
            (HASHES_DIFFER, "does not have the hash in the lock file"),
            (FORBIDDEN, "returned a 403 Forbidden error"),
            ("error: unexpected argument '--require-hashes' found", "unexpected argument"),
        ],
    )
    def test_is_not_said_of_what_failed_for_another_reason(self, machine: Machine, online: str, sentence: str) -> None:
        machine.says(online=online)
        with pytest.raises(bootstrap.SetupFailed, match=sentence) as failed:
            bootstrap.ensure(machine.environment)
        assert not isinstance(failed.value, bootstrap.NoNetwork)
        assert "no registry answers" not in str(failed.value)
        assert len(machine.syncs()) == 1
        assert not machine.environment.is_made()

    @pytest.mark.parametrize(
        ("offline", "sentence"),
        [(DISK_FULL, "the disk is full"), (HASHES_DIFFER, "does not have the hash"), ("error: it broke", "it broke")],
    )
    def test_is_not_said_of_what_kept_the_cache_from_being_used(
        self, machine: Machine, offline: str, sentence: str
    ) -> None:
        machine.says(online=UNREACHABLE, offline=offline)
        with pytest.raises(bootstrap.SetupFailed, match=sentence) as failed:
            bootstrap.ensure(machine.environment)
        assert "not cached" not in str(failed.value)


class TestTheInstaller:
    """uv itself, which pip installs, once per user."""

    @pytest.fixture
    def ran(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
        """The programs that are run; none of them really is."""
        ran: list[list[str]] = []

        def run(command: list[str], *, log: str, env: dict[str, str] | None = None) -> None:
            ran.append(command)
            if command[1:3] == ["-m", "venv"]:
                (Path(command[-1]) / "bin").mkdir(parents=True)
            else:
                Path(command[0]).with_name("uv").touch()

        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setattr(bootstrap, "run", run)
        return ran

    def test_needs_no_network_once_it_is_there(self, ran: list[list[str]]) -> None:
        first = bootstrap._ensure_uv()
        assert len(ran) == 2
        assert "--require-hashes" in ran[1]
        ran.clear()
        assert bootstrap._ensure_uv() == first
        assert ran == []

    def test_is_tried_again_after_a_run_without_network(
        self, ran: list[list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def away(command: list[str], **_: object) -> None:
            raise bootstrap.NoNetwork("no package registry answers")

        with monkeypatch.context() as patch:
            patch.setattr(bootstrap, "run", away)
            with pytest.raises(bootstrap.NoNetwork):
                bootstrap._ensure_uv()
        bootstrap._ensure_uv()
        assert len(ran) == 2


class TestLocks:
    @pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
    def test_name_no_registry_and_pin_every_package_by_hash(self, lock: Path) -> None:
        text = lock.read_text()
        assert "://" not in text
        entries = [line for line in re.sub(r"\\\n\s+", "", text).splitlines() if not re.match(r"\s*#", line)]
        pinned = re.compile(r"[A-Za-z0-9][\w.\[\],-]*==[\w.+!]+ ( *; [^\n]*? )?(--hash=sha256:[0-9a-f]{64} ?)+")
        assert [line for line in entries if not pinned.fullmatch(line)] == []
        assert entries

    def test_are_there_for_everything_that_is_asked_for(self) -> None:
        asked = {path.stem for path in REQUIREMENTS.glob("*.in")} | {"control"}  # that one is pyproject.toml's
        assert {path.stem for path in LOCKS} == asked
        assert asked >= {"control", "engine", "uv", "sdk3", "litellm"}

    def test_of_javascript_names_no_registry_and_pins_every_package_by_integrity(self) -> None:
        locked = json.loads((JAVASCRIPT / "package-lock.json").read_text())
        asked = json.loads((JAVASCRIPT / "package.json").read_text())
        own = locked["packages"].pop("")
        assert own["dependencies"] == asked["dependencies"]
        assert set(locked["packages"]) >= {f"node_modules/{name}" for name in asked["dependencies"]}
        for name, package in locked["packages"].items():
            assert package["integrity"].startswith("sha512-"), name
            assert "resolved" not in package, f"{name} names the registry that it was locked from"

    def test_leave_out_what_breaks_the_engine(self) -> None:
        text = (REQUIREMENTS / "engine.txt").read_text()
        assert not re.search(
            r"^(torchvision|torchaudio|torchcodec|llm|llama-cpp-python|nvidia-\w+)==", text, re.MULTILINE
        )
        assert "torch==2.13.0+cpu" in text
