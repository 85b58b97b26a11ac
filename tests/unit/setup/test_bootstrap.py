"""What the bootstrap hands from pip to uv, and the locks it installs from."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest

from infra.setup import bootstrap

REQUIREMENTS = bootstrap.REQUIREMENTS


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


class TestLocks:
    @pytest.mark.parametrize("name", ["control", "engine", "uv"])
    def test_name_no_registry_and_pin_every_package_by_hash(self, name: str) -> None:
        text = (REQUIREMENTS / f"{name}.txt").read_text()
        assert not re.search(r"https?://|file://|--index|--find-links", text)
        pinned = re.findall(r"^[A-Za-z0-9][^\n]*==[^\n]*$", text, re.MULTILINE)
        assert pinned
        assert all(line.endswith("\\") for line in pinned)

    def test_leave_out_what_breaks_the_engine(self) -> None:
        text = (REQUIREMENTS / "engine.txt").read_text()
        assert not re.search(
            r"^(torchvision|torchaudio|torchcodec|llm|llama-cpp-python|nvidia-\w+)==", text, re.MULTILINE
        )
        assert "torch==2.13.0+cpu" in text
