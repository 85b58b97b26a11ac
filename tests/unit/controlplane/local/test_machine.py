"""Faults of the machine: each ends in one sentence that says what to do, or does no harm."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from dotenv import dotenv_values
from rich.console import Console

from controlplane.local import demo, launch, model, output, ports, probes, progress
from controlplane.local.children import ChildSpec, Identity, NotReady, remove_sockets
from controlplane.local.paths import Layout, quote_env, sweep_short_paths, write_private
from controlplane.local.plan import PlanFailed
from controlplane.local.supervisor import Child, State

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(root=ROOT, state=tmp_path / "w")
    made.make()
    return made


def console() -> Console:
    return Console(file=io.StringIO(), width=40, soft_wrap=True, highlight=False)


def said(by: Console) -> str:
    assert isinstance(by.file, io.StringIO)
    return by.file.getvalue()


class TestDisk:
    def test_says_how_much_is_missing_before_anything_starts(self, layout: Layout) -> None:
        with pytest.raises(PlanFailed, match=r"MB are free in .*/w, and the stores need .*set WEIR_HOME"):
            launch.check_disk(layout=layout, bytes_min=10**18)

    def test_full_under_the_output_costs_the_line_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with Path("/dev/full").open("w") as full:
            monkeypatch.setattr(sys, "stdout", full)
            output.tolerate_output()
            output.open_console().print("a line")
            sys.stdout.flush()

    def test_leaves_no_part_of_a_file_that_could_not_be_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match="No space left"):
            write_private(tmp_path / "run.json", "{}")
        assert list(tmp_path.iterdir()) == []


class TestStateDirectory:
    @pytest.mark.parametrize(
        ("number", "advice"),
        [
            (errno.ENOSPC, "free some space"),
            (errno.EFBIG, "quota"),
            (errno.EROFS, "set WEIR_HOME to one"),
            (errno.EACCES, "make it yours"),
            (errno.EEXIST, "not a folder"),
            (errno.ENAMETOOLONG, "shorter"),
        ],
    )
    def test_that_cannot_be_used_is_named_with_what_to_do(
        self, monkeypatch: pytest.MonkeyPatch, number: int, advice: str
    ) -> None:
        def refuse(layout: Layout) -> None:
            raise OSError(number, os.strerror(number), "/x/.weir")

        monkeypatch.setattr(Layout, "make", refuse)
        for run in (launch.run_detached, launch.run_foreground):
            shown = console()
            layout = Layout(root=ROOT, state=Path("/x/.weir"))
            assert run(layout=layout, console=shown, with_demo=False, until_pid=None) == 1
            assert said(shown).startswith("up: /x/.weir: ")
            assert advice in said(shown)
            assert said(shown).count("\n") == 1

    @pytest.mark.parametrize("value", ["it's", "back\\slash", "a\\'b", 'x "y" #z', "日本 é"])
    def test_comes_back_from_the_settings_file_whatever_its_name(self, tmp_path: Path, value: str) -> None:
        (tmp_path / "env").write_text(f"WEIR_HOME={quote_env(value)}\n")
        assert dotenv_values(tmp_path / "env") == {"WEIR_HOME": value}


class TestPorts:
    def test_names_who_holds_one(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            assert f"(process {os.getpid()})" in ports.find_holder(server.getsockname()[1])

    def test_that_another_platform_has_chosen_is_left_to_it_before_it_listens(self) -> None:
        choose = "print(find_gateway_port(preferred=21_000), flush=True); input()"
        program = f"from controlplane.local.ports import find_gateway_port; {choose}"
        other = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "platform")},
        )
        assert other.stdout is not None
        theirs = int(other.stdout.readline())
        assert ports.is_free(theirs)
        assert ports.find_gateway_port(preferred=21_000) != theirs
        assert not ports.hold(theirs)
        other.communicate("")
        assert ports.hold(theirs)
        assert ports.hold(theirs), "what is ours stays ours"

    def test_are_chosen_anew_when_their_file_is_damaged(self, tmp_path: Path) -> None:
        for text in ("", "[]", '{"valkey": "x"}'):
            (tmp_path / "ports.json").write_text(text)
            assert ports.PortBook(path=tmp_path / "ports.json").find(name="valkey") is None


class TestDown:
    def test_ends_nobody_who_has_the_pid_of_a_dead_supervisor(self, layout: Layout) -> None:
        """The file names our own pid with another start time: we would be the one who is ended."""
        layout.supervisor_file.write_text(json.dumps({"pid": os.getpid(), "started": 1}))
        layout.run_file.write_text(json.dumps({"supervisor": os.getpid(), "serving": True, "processes": []}))
        assert launch.read_holder(layout=layout) is None
        shown = console()
        assert launch.take_down(layout=layout, console=shown) == 0
        assert said(shown) == "Nothing runs here.\n"
        assert Identity.of(pid=os.getpid()) is not None


class TestSecondStart:
    """`make up` where the platform runs already, on port 8123 with the simulated engine."""

    @pytest.fixture
    def running(self, layout: Layout, monkeypatch: pytest.MonkeyPatch) -> Layout:
        for name in ("PORT", "ENGINE", *(name for name in os.environ if name.startswith("WEIR_") or "_URL" in name)):
            monkeypatch.delenv(name, raising=False)
        layout.env_file.write_text("WEIR_PORT=8123\nWEIR_ENGINE=simulated\nREDIS_URL=redis://a/0\nWEIR_X=1\n")
        layout.run_file.write_text(json.dumps({"supervisor": 1, "serving": True, "processes": []}))
        return layout

    @pytest.mark.parametrize(
        ("asked", "answer"),
        [
            ({"PORT": "8124"}, "it listens on port 8123, not 8124"),
            ({"WEIR_PORT": "8124"}, "it listens on port 8123, not 8124"),
            ({"ENGINE": "vllm"}, "its engine is simulated, not vllm"),
            (
                {"ENGINE_URL": "http://elsewhere"},
                "its engine is simulated, not openai; it was started with another ENG",
            ),
            ({"REDIS_URL": "redis://:secret@b/0"}, "it was started with another REDIS_URL"),
            ({"WEIR_X": "2", "WEIR_Y": "1"}, "it was started with another WEIR_X, WEIR_Y"),
        ],
    )
    def test_says_what_cannot_be_had_while_it_runs(
        self, running: Layout, monkeypatch: pytest.MonkeyPatch, asked: dict[str, str], answer: str
    ) -> None:
        for name, value in asked.items():
            monkeypatch.setenv(name, value)
        shown = console()
        assert launch.report_running(layout=running, console=shown) == 1
        assert answer in said(shown)
        assert "`make down` first" in said(shown)
        assert "secret" not in said(shown)
        assert said(shown).count("\n") == 1

    @pytest.mark.parametrize(("name", "value"), [("PORT", "abc"), ("PORT", "0"), ("ENGINE", "gpt")])
    def test_refuses_what_could_never_be_had(
        self, running: Layout, monkeypatch: pytest.MonkeyPatch, name: str, value: str
    ) -> None:
        monkeypatch.setenv(name, value)
        shown = console()
        assert launch.report_running(layout=running, console=shown) == 1
        assert said(shown).startswith(f"up: {name}={value} ")

    def test_is_content_when_nothing_else_was_asked_for(self, running: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in {"PORT": "8123", "ENGINE": "simulated", "WEIR_X": "1", "WEIR_HOME": "/x"}.items():
            monkeypatch.setenv(name, value)
        shown = console()
        assert launch.report_running(layout=running, console=shown) == 0
        assert said(shown).startswith("Weir runs here already")

    def test_does_not_compare_with_the_start_before(self, running: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
        running.run_file.unlink()
        monkeypatch.setenv("PORT", "8123")
        shown = console()
        assert launch.report_running(layout=running, console=shown) == 1
        assert "just being started" in said(shown)


class TestShortPaths:
    def test_that_lead_nowhere_are_swept_and_others_stay(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        here, there = tmp_path / "here", tmp_path / "there" / ".weir"
        here.mkdir()
        there.mkdir(parents=True)
        user = os.getuid()
        links = {
            name: tmp_path / f"weir-{name}" for name in (f"{user}-0123abcd", f"{user}-0123abce", f"{user}-0123abcf")
        }
        gone, kept, below = links.values()
        gone.symlink_to(tmp_path / "gone")
        kept.symlink_to(here)
        below.symlink_to(there)
        foreign = tmp_path / f"weir-{user + 1}-0123abcd"
        foreign.symlink_to(tmp_path / "gone")
        folder = tmp_path / f"weir-{user}-0123abc0"
        folder.mkdir()
        assert sweep_short_paths() == [gone]
        assert sweep_short_paths(under=tmp_path / "there") == [below]
        assert kept.is_symlink()
        assert foreign.is_symlink()
        assert folder.is_dir()


class TestLeftSockets:
    def test_one_that_answers_or_is_no_socket_stays(self, tmp_path: Path) -> None:
        dead, alive, plain = (tmp_path / name for name in ("dead.sock", "alive.sock", "plain.sock"))
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(dead))
        plain.touch()
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(alive))
            server.listen(1)
            remove_sockets([dead, alive, plain, tmp_path / "none.sock"])
        assert (dead.exists(), alive.exists(), plain.exists()) == (False, True, True)


class TestPulse:
    async def test_that_stops_is_noticed_and_one_that_goes_on_is_not(self, tmp_path: Path) -> None:
        path = tmp_path / "beat.pulse"
        path.touch()
        probe = probes.file_changes(path=path)
        await probe()
        os.utime(path, ns=(0, 1))
        await probe()
        with pytest.raises(NotReady, match="stopped"):
            await probe()
        os.utime(path, ns=(0, 2))
        await probe()


class TestDemo:
    def test_is_given_up_at_once_when_the_platform_stops(self) -> None:
        stopped = threading.Event()
        stopped.set()
        with pytest.raises(demo.DemoStopped):
            demo.wait_until_ready(base_url="http://127.0.0.1:9/v1", api_key="k", model="m", stopped=stopped)

    def test_breaks_no_line_of_a_file_or_pipe(self) -> None:
        shown = console()
        usage = {"prompt_tokens": 45, "completion_tokens": 29, "cost": "0.0000161"}
        given = {"base_url": "http://127.0.0.1:8080/v1", "api_key": "k" * 50, "admin_url": "u", "admin_user": "a"}
        demo.print_panel(
            console=shown,
            demo={**given, "admin_password": "p"},
            measured=demo.Measured(ttft=0.4, seconds=1.0, usage=usage),
        )
        first, *_, curl, sdk = said(shown).splitlines()
        assert first.endswith("cost 0.0000161")
        assert curl.startswith("curl ")
        assert sdk.endswith('"')


class TestModel:
    def test_removes_what_a_killed_conversion_left(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        directory = model.cached_directory(root=ROOT)
        left = directory.parent / f".{directory.name}.abc"
        left.mkdir(parents=True)
        refusing = tmp_path / "python"
        refusing.write_text("#!/bin/sh\necho 'OSError: [Errno 28] No space left on device' >&2; exit 1\n")
        refusing.chmod(stat.S_IRWXU)
        with pytest.raises(model.ModelFailed, match="is full: free 1 GB there"):
            model.ensure_model(root=ROOT, python=refusing, tell=lambda *_: None)
        assert not left.exists()

    def test_says_that_a_long_conversion_goes_on(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setattr(model, "_TELL_SECONDS", 0.01)
        goes_on = tmp_path / "fifo"
        os.mkfifo(goes_on)
        slow = tmp_path / "python"
        slow.write_text(f"#!/bin/sh\ncat {goes_on} >&2; exit 1\n")
        slow.chmod(stat.S_IRWXU)
        heard: list[str] = []

        def tell(what: str, seconds: float) -> None:
            if not heard:
                goes_on.write_text("enough")  # lets the conversion end
            heard.append(what)

        with pytest.raises(model.ModelFailed, match="enough"):
            model.ensure_model(root=ROOT, python=slow, tell=tell)
        assert set(heard) == {"the model is being converted"}


class TestReporter:
    @pytest.fixture(autouse=True)
    def _impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(progress, "WAIT_SECONDS", 0.001)

    async def test_reminds_of_what_still_starts_and_of_nothing_else(self, tmp_path: Path) -> None:
        report = tmp_path / "engine.json"
        report.write_text(json.dumps({"pid": os.getpid(), "state": "loading", "restarts": 0}))
        worker, beat = (
            Child(
                spec=ChildSpec(
                    name=name, role=name, command=(), env={}, cwd=tmp_path, probe=probes.started, reports=reports
                )
            )
            for name, reports in (("worker", (("engine", report),)), ("beat", ()))
        )
        shown = io.StringIO()
        reporter = progress.Reporter(Console(file=shown, width=100))
        for child, state in ((worker, State.STARTING), (beat, State.STARTING), (beat, State.SERVING)):
            child.state = state
            reporter(child)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await reporter.remind()
        first, *others = shown.getvalue().splitlines()
        assert first.startswith("  ✓ beat")
        assert {line.partition(",")[0] for line in others} == {"  … worker is starting: its engine is loading"}

    async def test_says_of_an_engine_that_was_not_started_yet_that_it_is_not_there(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(progress, "WAIT_SECONDS", 0.001)
        shown = io.StringIO()
        reporter = progress.Reporter(Console(file=shown, width=100))
        missing = (("engine", tmp_path / "none.json"),)
        spec = ChildSpec(
            name="worker", role="worker", command=(), env={}, cwd=tmp_path, probe=probes.started, reports=missing
        )
        reporter(Child(spec=spec, state=State.STARTING))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await reporter.remind()
        assert "worker is starting: its engine is not there yet" in shown.getvalue()


class TestDetached:
    def test_says_what_to_do_when_its_supervisor_is_killed(
        self, layout: Layout, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def killed(*_: object) -> subprocess.Popen[bytes]:
            process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()
            return process

        layout.supervisor_log.touch()
        monkeypatch.setattr(launch, "check_disk", lambda **_: None)
        monkeypatch.setattr(launch, "_spawn_supervisor", killed)
        shown = console()
        assert launch.run_detached(layout=layout, console=shown, with_demo=True, until_pid=None) == 1
        assert said(shown) == "up: its supervisor was ended by SIGKILL: run `make up` again\n"

    @pytest.mark.parametrize("with_demo", [True, False])
    def test_sends_the_demo_request_unless_it_is_told_not_to(
        self, layout: Layout, monkeypatch: pytest.MonkeyPatch, with_demo: bool
    ) -> None:
        sent: list[Layout] = []
        monkeypatch.setattr(launch, "check_disk", lambda **_: None)
        monkeypatch.setattr(launch, "_spawn_supervisor", lambda *_: None)
        monkeypatch.setattr(launch, "_follow_until_serving", lambda *_: True)
        monkeypatch.setattr(launch, "_show_demo", lambda of, *_: sent.append(of))
        shown = console()
        assert launch.run_detached(layout=layout, console=shown, with_demo=with_demo, until_pid=None) == 0
        assert sent == ([layout] if with_demo else [])
        assert said(shown) == "It runs in the background: `make ps`, `make logs`, `make down`.\n"


class TestUntilPid:
    async def test_a_process_that_is_killed_is_told_once(self) -> None:
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)  # noqa: ASYNC220
        told: list[int] = []
        heard = asyncio.Event()

        def tell() -> None:
            told.append(process.pid)
            heard.set()

        launch._when_ended(process.pid, tell)
        process.kill()
        async with asyncio.timeout(10):
            await heard.wait()
            for _ in range(10):  # it stays readable: a second call would come with the next turn
                await asyncio.sleep(0)
        process.communicate()
        assert told == [process.pid]

    async def test_one_that_is_not_there_is_told_at_once(self) -> None:
        process = subprocess.Popen([sys.executable, "-c", ""])  # noqa: ASYNC220
        process.wait()
        heard = asyncio.Event()
        launch._when_ended(process.pid, heard.set)
        async with asyncio.timeout(10):
            await heard.wait()
