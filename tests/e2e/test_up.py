"""The life of `make up`: what it prints and writes, a second one beside it, `ps`, `logs`, `down`, and the next one.

One platform of its own for all of it, in this order: up in the foreground, down from elsewhere, up again detached,
down with its data. The fixtures are its life, each the next step; the tests look at what was seen between them.
"""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from controlplane.env import ROOT
from controlplane.local import demo
from controlplane.local.children import Identity, listens
from controlplane.local.ports import is_free
from infra.bench.instance import DOWN_SECONDS, UP_SECONDS, Instance, InstanceFailed, Process, environment_of
from tests.e2e.accounts import Account, metered, quiet
from tests.e2e.api import Api, bare_id
from tests.e2e.processes import at_home, family_of, left_of

ENGINE = "simulated"
ROLES = ["beat", "celery", "engine", "gateway", "meter", "postgres", "s3", "settler", "valkey", "worker"]
LISTENING = {"gateway", "postgres", "valkey", "s3"}
SHOWN = {"base_url", "api_key", "admin_url", "admin_user", "admin_password"}
WRITTEN = {*SHOWN, "other_api_key", "model"}
GREETED = "Ctrl-C stops it."
TENANT = "Acme"  # the owner of api_key
COMMAND_SECONDS = 60.0
SETTLED_SECONDS = 30.0
PORTS = range(15_000, 20_000)  # where no platform looks for one by itself: another one cannot be there first
NOTHING = Account(requests=0, input_tokens=0, cached_tokens=0, output_tokens=0, cost=Decimal(0))
NUMBERS = re.compile(
    r"^model  (?P<text>.+)\n+"
    r"first token (?P<ttft>\d+) ms  ·  (?P<rate>\d+\.\d) tokens/s  ·  "
    r"(?P<prompt>\d+) prompt \+ (?P<completion>\d+) completion tokens  ·  (?P<cached>\d+) cached  ·  "
    r"cost (?P<cost>\d+\.\d+)$",
    re.MULTILINE | re.DOTALL,
)
PANEL = re.compile(
    r"^│ base URL +(?P<base_url>\S+) +│\n│ key +(?P<api_key>\S+) +│\n"
    r"│ admin +(?P<admin_url>\S+) +(?P<admin_user>\S+) / (?P<admin_password>\S+) +│$",
    re.MULTILINE,
)
TOKEN = re.compile(r'name="csrfmiddlewaretoken" value="([^"]+)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One run of the platform, from its `up` on: what that printed and wrote, and the report after its one request."""

    instance: Instance
    since: int  # Unix seconds, before the first request of all
    port: int
    output: str
    demo: dict[str, Any]
    supervisor: Identity
    processes: list[Process]
    account: Account

    @property
    def api(self) -> Api:
        return Api(str(self.demo["base_url"]), str(self.demo["api_key"]))

    def numbers(self) -> re.Match[str]:
        """The answer that `up` showed, and its numbers."""
        found = NUMBERS.search(self.output)
        assert found, self.output
        return found

    def told(self) -> Account:
        """What `up` said of its own request."""
        found = self.numbers()
        return Account(
            requests=1,
            input_tokens=int(found["prompt"]),
            cached_tokens=int(found["cached"]),
            output_tokens=int(found["completion"]),
            cost=Decimal(found["cost"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What the first life leaves: documents of requests by their path, the usage, and the operator's report."""

    documents: dict[str, Any]
    background: str  # the path of the request that was answered in the background
    account: Account
    check: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The moment after `down`."""

    said: str
    left: list[Identity]  # of the supervisor and everything below it
    bystander: subprocess.Popen[bytes]
    foreground: int  # the exit code of the `up` that stayed in the foreground


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """A state directory; whatever runs in it at the end is stopped, and its data removed."""
    made = Path(tempfile.mkdtemp(prefix="weir-up-"))
    made.chmod(0o711)  # PostgreSQL may run as another user
    try:
        yield made
    finally:
        if made.exists():
            Instance(made).manage("down", "--remove-data", engine=ENGINE, deadline=DOWN_SECONDS)
        shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The terminal of the `up` in the foreground, as a file."""
    return tmp_path_factory.mktemp("up") / "output"


@pytest.fixture(scope="module")
def foreground(home: Path, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """What `make up PORT=…` runs, in the foreground."""
    port = next(port for port in random.sample(PORTS, len(PORTS)) if is_free(port))
    process = run_up(home, output, "--until-pid", str(os.getpid()), PORT=str(port))
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(timeout=DOWN_SECONDS)


@pytest.fixture(scope="module")
def first(home: Path, output: Path, foreground: subprocess.Popen[bytes]) -> Life:
    since = int(time.time())  # noqa: TID251 - the window of the usage report begins here
    until = time.monotonic() + UP_SECONDS[ENGINE]
    while GREETED not in said(output):
        if foreground.poll() is not None or time.monotonic() > until:
            raise InstanceFailed(f"`up` does not serve:\n{said(output)}\n{Instance(home).log_tails()}")
        time.sleep(0.1)
    return seen(Instance(home), said(output), since=since, before=NOTHING)


@pytest.fixture(scope="module")
def kept(first: Life) -> Kept:
    """Three requests more, one of them in the background and one of the other tenant; all ended, metered, settled."""
    api, other = first.api, Api(first.api.base_url, str(first.demo["other_api_key"]))
    message = {"role": "user", "content": "say: what was given out stays"}
    request = {"model": first.demo["model"], "messages": [message], "max_tokens": 12}
    asked = []
    for owner, more in ((api, {}), (api, {"background": True}), (other, {})):
        answer = owner.post("/chat/completions", {**request, **more})
        assert answer.status_code == (202 if more else 200), answer.text
        asked.append(bare_id(answer.json()["id"]))
        owner.ended(asked[-1])
    plain, background, _ = asked
    account = quiet(api, since=first.since)
    check = agreed(first, requests=account.requests)
    paths = [f"/requests/{plain}", f"/requests/{plain}/receipt", f"/requests/{background}"]
    answers = {path: api.get(path) for path in paths}
    assert {answer.status_code for answer in answers.values()} == {200}, answers
    documents = {path: answer.json() for path, answer in answers.items()}
    return Kept(documents=documents, background=paths[-1], account=account, check=check)


@pytest.fixture(scope="module")
def stopped(first: Life, kept: Kept, foreground: subprocess.Popen[bytes]) -> Iterator[Stopped]:
    """`down`, beside a process of somebody else that a pid file of an old start names: the pid is its own by now."""
    instance = first.instance
    family = family_of(first.supervisor.pid)
    assert {process.pid for process in first.processes} < {identity.pid for identity in family}
    env = {**os.environ, "WEIR_HOME": str(instance.home)}
    with ExitStack() as stack:
        idle = [sys.executable, "-c", "input()"]  # it leads a session, as every process of the platform does
        bystander = subprocess.Popen(idle, cwd=instance.home, env=env, stdin=subprocess.PIPE, start_new_session=True)
        stack.enter_context(bystander)
        stack.callback(bystander.kill)
        record = {"pid": bystander.pid, "started": 1, "signal": int(signal.SIGKILL), "deadline": 1.0, "leaves": []}
        (instance.home / "run" / "bystander.pid.json").write_text(json.dumps(record))
        answer = succeeded(instance.manage("down", deadline=DOWN_SECONDS))
        code = foreground.wait(timeout=DOWN_SECONDS)
        yield Stopped(said=answer, left=left_of(family), bystander=bystander, foreground=code)


@pytest.fixture(scope="module")
def second(first: Life, kept: Kept, stopped: Stopped) -> Life:
    """The next `up`, detached, that names no port."""
    up = ("up", "--detach", "--until-pid", str(os.getpid()))
    done = first.instance.manage(*up, engine=ENGINE, settings=terminal(), deadline=UP_SECONDS[ENGINE])
    if done.returncode != 0:
        raise InstanceFailed(f"`up` ended with {done.returncode}:\n{done.stdout}\n{first.instance.log_tails()}")
    return seen(first.instance, done.stdout, since=first.since, before=kept.account)


def run_up(home: Path, output: Path, *options: str, **settings: str) -> subprocess.Popen[bytes]:
    """`up` as `make up` runs it; what it prints goes to the file."""
    env = environment_of(home=home, engine=ENGINE, base=os.environ) | terminal() | settings
    command = [sys.executable, "-m", "controlplane.local", "up", *options]
    with output.open("wb") as file:
        return subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file)


def said(output: Path) -> str:
    """What an `up` has printed so far; half a letter may be the last that is there."""
    return output.read_text(encoding="utf-8", errors="replace")


def terminal() -> dict[str, str]:
    """What output and imports depend on, so that it is the same wherever the tests run."""
    return {"COLUMNS": "120", "PYTHONIOENCODING": "utf-8", "PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}"}


def seen(instance: Instance, output: str, *, since: int, before: Account) -> Life:
    """A platform that has just come up, once its demo request is in the usage report."""
    written = instance.demo
    supervisor = Identity.of(pid=int(run_file(instance)["supervisor"]))
    assert supervisor is not None
    return Life(
        instance=instance,
        since=since,
        port=httpx.URL(str(written["base_url"])).port or 80,
        output=output,
        demo=written,
        supervisor=supervisor,
        processes=instance.processes(),
        account=metered(Api(str(written["base_url"]), str(written["api_key"])), since=since, before=before, requests=1),
    )


def run_file(instance: Instance) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((instance.home / "run.json").read_text())
    return document


def succeeded(done: subprocess.CompletedProcess[str]) -> str:
    """What a command said that ended well."""
    assert done.returncode == 0, done.stdout
    return done.stdout


def agreed(life: Life, *, requests: int) -> dict[str, Any]:
    """The check of `usage_report` once it counts so many requests in both books; it fails while they differ."""
    until = time.monotonic() + SETTLED_SECONDS
    since = datetime.fromtimestamp(life.since, tz=UTC).isoformat()  # also when a month ends meanwhile
    command = ("usage_report", "--tenant", TENANT, "--from", since, "--format", "json")
    while True:
        done = life.instance.manage(*command, deadline=COMMAND_SECONDS)
        if done.returncode == 0:
            (check,) = json.loads(done.stdout)["check"]
            if check["ledger_requests"] >= requests:
                return dict(check)
        assert time.monotonic() < until, done.stdout
        time.sleep(0.2)


def written_logs(instance: Instance) -> set[str]:
    """The names of the logs that hold something."""
    return {path.stem for path in (instance.home / "logs").glob("*.log") if path.stat().st_size}


def panel(output: str) -> dict[str, str]:
    """How to call it and where to sign in, as `up` shows it."""
    found = PANEL.search(output)
    assert found, output
    return found.groupdict()


def shown_of(written: dict[str, Any]) -> dict[str, Any]:
    """What of demo.json `up` shows."""
    return {name: written[name] for name in SHOWN}


def command_lines(output: str) -> tuple[list[str], list[str]]:
    """The curl line and the Python line, as a shell reads them."""
    curl, python = (shlex.split(line) for line in output.splitlines() if line.startswith("curl ") or " -c " in line)
    return curl, python


def sign_in(written: dict[str, Any]) -> httpx.Response:
    """The page after the console's login form."""
    with httpx.Client(follow_redirects=True, timeout=COMMAND_SECONDS) as client:
        page = client.get(str(written["admin_url"]))
        token = TOKEN.search(page.text)
        assert token, page.text
        form = {
            "username": written["admin_user"],
            "password": written["admin_password"],
            "csrfmiddlewaretoken": token[1],
        }
        return client.post(page.url, data={**form, "next": "/admin/"}, headers={"Referer": str(page.url)})


class TestWhatUpSays:
    def test_is_a_streamed_answer_and_what_it_cost_as_the_usage_report_has_it(self, first: Life) -> None:
        assert f"you    {demo.PROMPT}\nmodel  " in first.output
        told = first.told()
        assert told == first.account
        assert told.cost > 0
        assert min(told.input_tokens, told.output_tokens) > 1
        assert int(first.numbers()["ttft"]) > 0
        assert float(first.numbers()["rate"]) > 0

    def test_is_the_text_that_the_api_gives_to_the_same_question(self, first: Life) -> None:
        message = {"role": "user", "content": demo.PROMPT}
        request = {"model": first.demo["model"], "messages": [message], "max_tokens": 80, "temperature": 0}
        answer = first.api.post("/chat/completions", request)
        assert answer.status_code == 200, answer.text
        assert first.numbers()["text"].strip() == answer.json()["choices"][0]["message"]["content"].strip()

    def test_is_where_to_call_it_and_where_to_sign_in(self, first: Life) -> None:
        assert panel(first.output) == shown_of(first.demo)
        assert first.demo["base_url"] == f"http://127.0.0.1:{first.port}/v1"
        assert first.demo["admin_url"] == f"http://127.0.0.1:{first.port}/admin/"

    def test_is_a_curl_line_and_a_line_of_the_sdk_that_get_an_answer(self, first: Life) -> None:
        (program, url, *options), python = command_lines(first.output)
        given = list(zip(options[::2], options[1::2], strict=True))
        headers = dict(value.split(": ", 1) for name, value in given if name == "-H")
        (body,) = [value for name, value in given if name == "-d"]
        assert (program, url, len(given)) == ("curl", f"{first.demo['base_url']}/chat/completions", 3)
        assert headers["Authorization"] == f"Bearer {first.demo['api_key']}"
        answer = httpx.post(url, headers=headers, content=body, timeout=COMMAND_SECONDS)
        assert answer.status_code == 200, answer.text
        printed = subprocess.run(python, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=True).stdout
        assert printed.strip() == answer.json()["choices"][0]["message"]["content"].strip() != ""


class TestWhatUpWrites:
    def test_names_every_process_and_each_runs(self, first: Life) -> None:
        rows = run_file(first.instance)["processes"]
        assert all({"name", "role", "pid", "port"} <= set(row) for row in rows)
        assert sorted(row["role"] for row in rows) == ROLES
        assert len({row["name"] for row in rows}) == len({row["pid"] for row in rows}) == len(rows)
        assert run_file(first.instance)["missing"] == []
        for row in rows:
            assert Identity.of(pid=row["pid"]) is not None, row

    def test_names_the_ports_of_those_that_listen(self, first: Life) -> None:
        ports = {process.role: process.port for process in first.processes}
        assert {role for role, port in ports.items() if port is not None} == LISTENING
        assert ports["gateway"] == first.port
        for process in first.processes:
            assert process.port is None or listens(pid=process.pid, port=process.port), process
        assert first.instance.engine_socket().is_socket()

    def test_keeps_keys_and_logins_from_other_users(self, first: Life) -> None:
        path = first.instance.home / "demo.json"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert set(first.demo) == WRITTEN
        assert all(isinstance(value, str) and value for value in first.demo.values())
        assert first.demo["api_key"] != first.demo["other_api_key"]


class TestASecondUpBesideIt:
    @pytest.mark.parametrize("options", [[], ["--detach"]], ids=["foreground", "detached"])
    def test_says_that_it_runs_and_starts_nothing(self, first: Life, tmp_path: Path, options: list[str]) -> None:
        home, before = first.instance.home, at_home(first.instance.home)
        assert first.supervisor.pid in before
        process = run_up(home, tmp_path / "output", *options)
        code, printed = process.wait(timeout=COMMAND_SECONDS), said(tmp_path / "output")
        running = f"Weir runs here already (process {first.supervisor.pid}); "
        assert printed.startswith(f"{running}`make ps` lists its processes, `make down` stops it.\n")
        assert code == 0
        assert panel(printed) == shown_of(first.demo)
        assert command_lines(printed) == command_lines(first.output)
        assert first.supervisor.is_running()
        assert first.instance.processes() == first.processes
        assert at_home(home) <= before


class TestPs:
    def test_lists_what_run_json_names(self, first: Life) -> None:
        listed = succeeded(first.instance.manage("ps", settings=terminal(), deadline=COMMAND_SECONDS))
        head, *rows = (line.split() for line in listed.splitlines())
        assert head == ["name", "role", "pid", "port", "state", "restarts", "up", "memory"]
        wanted = []
        for process in first.processes:
            port = [] if process.port is None else [str(process.port)]
            wanted.append([process.name, process.role, str(process.pid), *port, "serving"])
        assert [row[: len(start)] for row, start in zip(rows, wanted, strict=True)] == wanted


class TestLogs:
    def test_of_everything_name_whose_line_it_is(self, first: Life) -> None:
        before = written_logs(first.instance)
        shown = succeeded(first.instance.manage("logs", deadline=COMMAND_SECONDS))
        assert {"seed", "gateway", "worker-1", "postgres", "valkey"} <= before
        named = {line.partition("|")[0].strip() for line in shown.splitlines()}
        assert before <= named <= written_logs(first.instance)

    def test_of_one_process_are_its_log(self, first: Life) -> None:
        shown = succeeded(first.instance.manage("logs", "gateway", deadline=COMMAND_SECONDS))
        assert f"Uvicorn running on http://127.0.0.1:{first.port} " in shown
        assert (first.instance.home / "logs" / "gateway.log").read_text().startswith(shown)

    def test_of_a_name_that_is_none_are_refused_in_one_sentence(self, first: Life) -> None:
        done = first.instance.manage("logs", "gateway", "nobody", deadline=COMMAND_SECONDS)
        assert done.returncode == 1
        names = sorted(path.stem for path in (first.instance.home / "logs").glob("*.log"))
        refusal, _, offered = done.stdout.rstrip("\n").partition("; there are: ")
        assert refusal == "logs: no log of nobody"
        assert sorted(offered.split(", ")) == names
        assert done.stdout.count("\n") == 1


class TestDown:
    def test_stops_every_process_and_leaves_no_child_of_one(self, stopped: Stopped) -> None:
        assert stopped.said == "Stopped.\n"
        assert stopped.left == []

    def test_ends_the_up_in_the_foreground_in_good_order(self, stopped: Stopped, output: Path) -> None:
        assert stopped.foreground == 0
        assert said(output).endswith("Stopped.\n")
        assert "Traceback" not in said(output)

    def test_touches_nobody_who_has_the_pid_of_a_process_that_is_gone(self, first: Life, stopped: Stopped) -> None:
        assert stopped.bystander.poll() is None
        assert at_home(first.instance.home) == {stopped.bystander.pid}

    def test_leaves_keys_and_data_and_a_platform_that_does_not_run(self, first: Life, stopped: Stopped) -> None:
        assert not (first.instance.home / "run.json").exists()
        assert list((first.instance.home / "run").glob("*.pid.json")) == []
        assert first.instance.demo == first.demo
        ps = first.instance.manage("ps", deadline=COMMAND_SECONDS)
        assert succeeded(ps) == "Nothing runs here; `make up` starts it.\n"


class TestUpAgain:
    def test_has_the_same_keys_and_logins(self, first: Life, second: Life) -> None:
        assert second.demo == first.demo
        assert panel(second.output) == shown_of(first.demo)

    def test_has_the_same_ports_and_says_why_it_is_not_at_the_usual_one(self, first: Life, second: Life) -> None:
        before, after = ({process.role: process.port for process in life.processes} for life in (first, second))
        assert after == before
        assert f"the gateway listens on {first.port}, as it did before: PORT=… moves it\n" in second.output
        assert "the gateway listens on" not in first.output
        assert second.supervisor != first.supervisor

    def test_takes_the_old_keys_and_the_old_password(self, first: Life, second: Life) -> None:
        for key in (first.demo["api_key"], first.demo["other_api_key"]):
            listed = Api(first.api.base_url, key).get("/models")
            assert [model["id"] for model in listed.json()["data"]] == [first.demo["model"]]
        page = sign_in(first.demo)
        assert (page.status_code, str(page.url)) == (200, first.demo["admin_url"])

    def test_remembers_every_request_to_the_letter(self, second: Life, kept: Kept) -> None:
        for path, document in kept.documents.items():
            assert second.api.get(path).json() == document
        answer = kept.documents[kept.background]["response"]["choices"][0]["message"]["content"]
        assert answer.startswith("what was given out stays")

    def test_counts_on_where_its_books_ended(self, second: Life, kept: Kept) -> None:
        """The usage API, ClickHouse and the ledger: what they said, and the one request that `up` has made since."""
        assert second.account == second.told()
        check = agreed(second, requests=kept.account.requests + 1)
        assert check["clickhouse"] == check["ledger"]
        assert check["clickhouse_requests"] == check["ledger_requests"] == kept.check["ledger_requests"] + 1
        assert Decimal(check["ledger"]) == Decimal(kept.check["ledger"]) + second.told().cost
        assert Decimal(kept.check["ledger"]) == kept.account.cost


class TestDownWithItsData:
    def test_stops_it_and_leaves_nothing(self, second: Life) -> None:
        """With keys, secrets and ports gone too, the next start cannot but begin anew."""
        home = second.instance.home
        cluster = (home / "data" / "postgres").resolve()  # elsewhere, where PostgreSQL runs as another user
        assert (cluster / "PG_VERSION").exists()
        family = family_of(second.supervisor.pid)
        assert {process.pid for process in second.processes} < {identity.pid for identity in family}
        done = second.instance.manage("down", "--remove-data", settings=terminal(), deadline=DOWN_SECONDS)
        assert succeeded(done) == f"Stopped.\nRemoved {home}.\n"
        assert left_of(family) == []
        assert not home.exists()
        assert not cluster.exists()
