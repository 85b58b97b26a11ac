"""The supervisor as a process: what it starts, restarts, stops, and what is left when it is killed."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.local.children import Identity, is_group_alive, listens, stop_group
from controlplane.local.paths import Layout
from controlplane.local.supervisor import is_locked

PROGRAM = Path(__file__).with_name("supervised.py")
ROOT = PROGRAM.parents[3]


class Supervised:
    """The supervisor under test and what it has said."""

    def __init__(self, state: Path, case: str) -> None:
        self.state = state
        self.heard: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(state), case],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}"},
            stdout=subprocess.PIPE,
            text=True,
        )

    def hear(self, event: str, name: str | None = None) -> dict[str, Any]:
        """Waits for an event (of a child); fails when the supervisor ends without it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said: dict[str, Any] = json.loads(line)
            self.heard.append(said)
            if said["event"] == event and name in (None, said.get("name")):
                return said
        pytest.fail(f"never heard {event} {name or ''}; heard {self.heard}")

    def end(self, signum: signal.Signals) -> int:
        self.process.send_signal(signum)
        assert self.process.stdout is not None
        self.heard += [json.loads(line) for line in self.process.stdout]
        return self.process.wait(timeout=30)

    def run_file(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.state / "run.json").read_text())
        return document

    def await_row(self, name: str, **wanted: object) -> dict[str, Any]:
        """The row of a child once it is as wanted; the housekeeper writes it within a second."""
        until = time.monotonic() + 20
        while time.monotonic() < until:
            row = next(row for row in self.run_file()["processes"] if row["name"] == name)
            if all(row[key] == value for key, value in wanted.items()):
                return row
            time.sleep(0.05)
        pytest.fail(f"{name} was never {wanted}: {row}")

    def log(self, name: str) -> str:
        return (self.state / "logs" / f"{name}.log").read_text()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(timeout=5)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    running: list[Supervised] = []

    def begin(case: str) -> Supervised:
        supervised = Supervised(tmp_path / "w", case)
        running.append(supervised)
        return supervised

    yield begin
    for supervised in running:
        supervised.close()


def wait_until_ended(pid: int) -> None:
    """Returns when the process is gone; fails after ten seconds."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([pidfd], [], [], 10.0)[0], f"{pid} still runs"
    finally:
        os.close(pidfd)


class TestStart:
    def test_starts_a_child_only_after_those_it_needs(self, start: Any) -> None:
        platform = start("platform")
        platform.hear("platform serves")
        order = [(said["event"], said["name"]) for said in platform.heard if said.get("name")]
        assert order == [
            ("starting", "store"),
            ("serving", "store"),
            ("starting", "job"),
            ("done", "job"),
            ("starting", "door"),
            ("serving", "door"),
        ]

    def test_lists_what_runs(self, start: Any) -> None:
        platform = start("platform")
        platform.hear("platform serves")
        rows = platform.run_file()["processes"]
        assert [(row["name"], row["role"]) for row in rows] == [("store", "store"), ("door", "door")]
        assert rows[0]["port"] is None
        assert listens(pid=rows[1]["pid"], port=rows[1]["port"])
        assert all(Identity.of(pid=row["pid"]) is not None for row in rows)

    def test_ends_with_the_reason_when_a_child_cannot_live(self, start: Any) -> None:
        platform = start("broken")
        reason = platform.hear("over")["reason"]
        assert "broken could not be started" in reason
        assert "no such table" in reason
        assert platform.process.wait(timeout=20) == 1

    def test_stops_what_it_started_when_a_job_fails(self, start: Any) -> None:
        platform = start("broken_job")
        store = platform.hear("serving", "store")["pid"]
        platform.hear("over")
        assert platform.process.wait(timeout=20) == 1
        wait_until_ended(store)
        assert "stopped in order" in platform.log("store")

    def test_gives_up_a_child_that_never_answers(self, start: Any) -> None:
        assert "no answer" in start("mute").hear("over")["reason"]

    def test_takes_no_answer_of_another_program_for_the_child(self, start: Any) -> None:
        assert "another program listens on its port" in start("robbed").hear("over")["reason"]

    def test_refuses_a_second_supervisor(self, start: Any) -> None:
        platform = start("platform")
        platform.hear("platform serves")
        second = start("platform")
        second.hear("already running")
        assert second.process.wait(timeout=10) == 3
        assert is_locked(layout=Layout(root=ROOT, state=platform.state))


class TestDeath:
    def test_restarts_a_killed_child_and_writes_its_new_pid(self, start: Any) -> None:
        platform = start("platform")
        platform.hear("platform serves")
        old = platform.run_file()["processes"][1]["pid"]
        os.kill(old, signal.SIGKILL)
        platform.hear("backing off", "door")
        new = platform.hear("serving", "door")["pid"]
        assert new != old
        assert platform.run_file()["processes"][1]["pid"] == new

    def test_no_longer_counts_a_death_once_the_child_has_served_for_a_while(self, start: Any) -> None:
        """Here a while is no time at all: the next look of the housekeeper forgives."""
        platform = start("platform")
        platform.hear("platform serves")
        os.kill(platform.run_file()["processes"][1]["pid"], signal.SIGKILL)
        platform.hear("backing off", "door")
        platform.hear("serving", "door")
        row = platform.await_row("door", deaths=0)
        assert (row["restarts"], row["state"]) == (1, "serving")
        assert abs(row["restarted_at"] - time.monotonic()) < 60

    def test_leaves_other_children_alone_when_one_dies(self, start: Any) -> None:
        platform = start("platform")
        store = platform.hear("serving", "store")["pid"]
        os.kill(platform.hear("serving", "door")["pid"], signal.SIGKILL)
        platform.hear("serving", "door")
        assert platform.run_file()["processes"][0]["pid"] == store

    def test_takes_its_children_along_when_it_is_killed(self, start: Any) -> None:
        platform = start("platform")
        pids = [platform.hear("serving", name)["pid"] for name in ("store", "door")]
        platform.end(signal.SIGKILL)
        for pid in pids:
            wait_until_ended(pid)
        assert "stopped in order" in platform.log("store")

    def test_stops_what_outlived_a_killed_supervisor(self, start: Any) -> None:
        first = start("stubborn")
        pid = first.hear("serving", "stubborn")["pid"]
        first.end(signal.SIGKILL)
        second = start("stubborn")
        assert second.hear("leftovers")["names"] == ["stubborn"]
        wait_until_ended(pid)

    def test_never_signals_a_reused_pid(self, start: Any, tmp_path: Path) -> None:
        layout = Layout(root=ROOT, state=tmp_path / "w")
        layout.make()
        bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        (layout.run / "door.pid.json").write_text(
            json.dumps({"pid": bystander.pid, "started": 1, "signal": 15, "deadline": 1.0})
        )
        platform = start("platform")
        assert platform.hear("leftovers")["names"] == []
        assert bystander.poll() is None
        bystander.communicate(b"\n")


class TestLeftSockets:
    def test_are_removed_when_their_server_ends(self, start: Any) -> None:
        platform = start("leaving")
        platform.hear("platform serves")
        left = Path(f"{platform.state}.sock")
        assert left.is_socket()
        assert platform.end(signal.SIGINT) == 0
        assert not left.exists()

    def test_are_removed_by_the_next_start_when_everything_was_killed(self, start: Any) -> None:
        first = start("leaving")
        pid = first.hear("serving", "leaving")["pid"]
        first.end(signal.SIGKILL)
        wait_until_ended(pid)
        left = Path(f"{first.state}.sock")
        assert left.is_socket()
        second = start("leaving_nothing")
        assert second.hear("leftovers")["names"] == []
        assert not left.exists()


class TestHang:
    def test_starts_a_process_anew_that_stands_still(self, start: Any) -> None:
        """SIGSTOP: it has not died, so only its pulse tells."""
        platform = start("hung")
        first = platform.hear("serving", "settler")["pid"]
        os.kill(first, signal.SIGSTOP)
        assert platform.hear("backing off", "settler")["reason"] == "it hung (its pulse has stopped)"
        assert platform.hear("serving", "settler")["pid"] != first
        wait_until_ended(first)


class TestStop:
    @pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_stops_the_door_before_the_store(self, start: Any, signum: signal.Signals) -> None:
        platform = start("platform")
        platform.hear("platform serves")
        assert platform.end(signum) == 0
        stopped = [said["name"] for said in platform.heard if said["event"] == "stopped"]
        assert stopped == ["door", "store"]
        assert not (platform.state / "run.json").exists()
        assert "stopped in order" in platform.log("door")

    def test_kills_a_child_that_ignores_its_signal(self, start: Any) -> None:
        platform = start("stubborn")
        pid = platform.hear("serving", "stubborn")["pid"]
        assert platform.end(signal.SIGINT) == 0
        wait_until_ended(pid)

    def test_ends_the_whole_family_of_a_child(self, start: Any) -> None:
        platform = start("family")
        parent = platform.hear("serving", "family")["pid"]
        assert platform.end(signal.SIGINT) == 0
        wait_until_ended(parent)
        assert not is_group_alive(pgid=parent)


class TestStopGroup:
    def test_stops_a_process_also_for_who_has_a_thousand_files_open(self) -> None:
        child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
        identity = Identity.of(pid=child.pid)
        assert identity is not None
        many = [os.dup(0) for _ in range(1_024)]  # so that the number of its pidfd is past what select() takes
        try:
            assert stop_group(identity=identity, signum=signal.SIGTERM, deadline=30.0)
        finally:
            for descriptor in many:
                os.close(descriptor)
        assert child.wait() == -signal.SIGTERM
