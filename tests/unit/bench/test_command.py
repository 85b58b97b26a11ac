"""`manage.py bench` as a person and a program type it, with a bench that only pretends to measure."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import structlog

from controlplane.commandline import Utility
from controlplane.management.commands import bench as command
from infra.bench import queue, registry
from infra.bench.instance import Instance, InstanceFailed
from infra.bench.load import Refused
from infra.bench.output import Measure
from infra.bench.record import machine_rows
from infra.bench.registry import BENCHES, Bench, BenchFailed, Finished, Options, Start, run_queue

KEYS = ["bench", "case", "metric", "value", "unit", "peer", "peer_value", "ratio"]
CASE = {"engine": "none", "concurrency": 8}
MEASURES = (
    Measure(bench="fake", case=CASE, metric="ttft_p50_ms", value=12.5, unit="ms", peer="bare", peer_value=10),
    Measure(bench="fake", case=CASE, metric="alone", value=1_234.5, unit="tokens/s"),
)
Told = pytest.CaptureFixture[str]
Run = Callable[[Any, Options, Start], Any]


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """The command points the log at stderr, which is this test's only."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def manage(*arguments: str) -> int:
    """The exit code of `manage.py bench …`."""
    argv = ["manage.py", "bench", *arguments]
    try:
        Utility(argv).fetch_command("bench").run_from_argv(argv)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    return 0


def given(monkeypatch: pytest.MonkeyPatch, run: Run, *, platform: bool = False) -> None:
    monkeypatch.setitem(BENCHES, "fake", Bench(name="fake", about="pretends", run=run, platform=platform))


def finishing(*, measures: Sequence[Measure] = MEASURES, wrong: str = "") -> Run:
    """A bench that runs whole, logs, and measures this."""

    async def run(_: Any, options: Options, start: Start) -> Finished:
        start(2)(2)
        structlog.get_logger().warning("a word of the platform", requests=options.requests)
        return Finished(measures=measures, record={"machine": machine_rows()}, wrong=wrong)

    return run


def failing(error: BaseException) -> Run:
    """A bench that fails after its first step."""

    async def run(_: Any, __: Options, start: Start) -> Finished:
        start(2)(1)
        await asyncio.sleep(0)
        raise error

    return run


class TestABenchThatRanWhole:
    def test_ends_with_zero_and_prints_nothing_but_its_measures_on_stdout(
        self, monkeypatch: pytest.MonkeyPatch, capsys: Told
    ) -> None:
        given(monkeypatch, finishing())
        assert manage("fake", "--json") == 0
        documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [list(document) for document in documents] == [KEYS, KEYS]
        first = ["fake", "engine=none,concurrency=8", "ttft_p50_ms", 12.5, "ms", "bare", 10, 1.25]
        assert list(documents[0].values()) == first
        assert [documents[1][key] for key in ("peer", "peer_value", "ratio")] == [None, None, None]

    @pytest.mark.parametrize("flags", [(), ("--json",)])
    def test_shows_the_table_and_the_record_on_stderr(
        self, monkeypatch: pytest.MonkeyPatch, capsys: Told, flags: tuple[str, ...]
    ) -> None:
        given(monkeypatch, finishing())
        assert manage("fake", *flags) == 0
        said = capsys.readouterr().err
        assert "fake: engine=none, concurrency=8" in said
        for shown in ("ttft_p50_ms", "12.5", "1.25", "1,234", "tokens/s", "peer's value"):
            assert shown in said
        for shown in ("machine", "processor", "memory", "load before", "Python 3.11", "django 5", "uvloop", "commit"):
            assert shown in said

    def test_says_nothing_on_stdout_unless_asked(self, monkeypatch: pytest.MonkeyPatch, capsys: Told) -> None:
        given(monkeypatch, finishing())
        assert manage("fake") == 0
        assert capsys.readouterr().out == ""

    def test_logs_to_stderr(self, monkeypatch: pytest.MonkeyPatch, capsys: Told) -> None:
        given(monkeypatch, finishing())
        assert manage("fake", "--json", "--requests", "7") == 0
        captured = capsys.readouterr()
        assert "a word of the platform" in captured.err
        assert all(line.startswith("{") for line in captured.out.splitlines())

    def test_that_found_what_must_not_be_tells_its_measures_and_ends_with_one(
        self, monkeypatch: pytest.MonkeyPatch, capsys: Told
    ) -> None:
        given(monkeypatch, finishing(wrong="the gateway holds 3 descriptors more"))
        assert manage("fake", "--json") == 1
        captured = capsys.readouterr()
        assert len(captured.out.splitlines()) == len(MEASURES)
        assert "bench fake: the gateway holds 3 descriptors more" in captured.err.splitlines()[-1]


class TestABenchThatDidNot:
    @pytest.mark.parametrize(
        "error",
        [
            BenchFailed("3 requests failed, the first: 503"),
            InstanceFailed("the platform did not start"),
            Refused("the engine answered 404 to /metrics"),
            ConnectionResetError("the server closed the connection"),
            TimeoutError("no whole answer within 60 s"),
        ],
    )
    def test_ends_with_one_and_says_why_and_gives_no_number(
        self, monkeypatch: pytest.MonkeyPatch, capsys: Told, error: Exception
    ) -> None:
        given(monkeypatch, failing(error))
        assert manage("fake", "--json") == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.splitlines() == [f"CommandError: bench fake did not run whole: {error}"]

    def test_says_why_where_what_failed_was_one_of_many_at_once(
        self, monkeypatch: pytest.MonkeyPatch, capsys: Told
    ) -> None:
        """A task group's own words are "unhandled errors in a TaskGroup"."""
        inner = ExceptionGroup("one round", [ConnectionResetError("the engine is gone"), Refused("it answered 500")])
        given(monkeypatch, failing(ExceptionGroup("all rounds", [inner])))
        assert manage("fake") == 1
        said = capsys.readouterr().err
        assert said == "CommandError: bench fake did not run whole: the engine is gone; it answered 500\n"

    def test_names_an_error_that_has_no_words(self, monkeypatch: pytest.MonkeyPatch, capsys: Told) -> None:
        given(monkeypatch, failing(TimeoutError()))
        assert manage("fake") == 1
        assert capsys.readouterr().err.endswith("did not run whole: TimeoutError\n")

    @pytest.mark.parametrize("error", [ZeroDivisionError("no token came"), ExceptionGroup("g", [KeyError("usage")])])
    def test_keeps_the_traceback_of_a_fault_of_its_own(
        self, monkeypatch: pytest.MonkeyPatch, capsys: Told, error: Exception
    ) -> None:
        given(monkeypatch, failing(error))
        with pytest.raises(type(error)):
            manage("fake", "--json")
        assert capsys.readouterr().out == ""

    async def test_of_the_queue_says_what_was_wrong_deep_in_its_rounds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its workers are a group, and each of their rounds is one again."""

        async def broken(**_: Any) -> None:
            raise ExceptionGroup("workers", [ExceptionGroup("cycles", [queue.WrongAnswer("claim: nothing")])])

        monkeypatch.setattr(registry, "private_valkey", nullcontext)
        monkeypatch.setattr(queue, "run", broken)
        options = Options(engine="vllm", requests=None, concurrency=None, max_tokens=None, prompt_words=None)
        with pytest.raises(BenchFailed, match=r"^claim: nothing$"):
            await run_queue(None, options, lambda _: lambda _: None)


class TestThePlatformThatIsMeasured:
    @pytest.fixture
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("WEIR_HOME", str(tmp_path))
        return tmp_path

    @pytest.fixture
    def seen(self, monkeypatch: pytest.MonkeyPatch, home: Path) -> list[Path]:
        """The homes of the platforms that a bench was given."""
        seen: list[Path] = []

        async def run(instance: Instance, _: Options, __: Start) -> Finished:
            seen.append(instance.home)
            return Finished(measures=MEASURES, record={})

        def private(*, engine: str) -> AbstractContextManager[Instance]:
            return nullcontext(Instance(home / "private" / engine))

        given(monkeypatch, run, platform=True)
        monkeypatch.setattr(command, "private_instance", private)
        return seen

    def runs(self, monkeypatch: pytest.MonkeyPatch, home: Path, *, engine: str) -> None:
        async def engine_of(_: Instance) -> str:
            return engine

        monkeypatch.setattr(Instance, "find", lambda _: Instance(home))
        monkeypatch.setattr(command, "engine_of", engine_of)

    def test_is_a_private_one_where_none_runs(self, home: Path, seen: list[Path], capsys: Told) -> None:
        assert manage("fake", "--engine", "vllm", "--json") == 0
        assert seen == [home / "private" / "vllm"]
        captured = capsys.readouterr()
        assert captured.err.startswith("starting a private platform with the engine vllm: none runs\n")
        assert len(captured.out.splitlines()) == len(MEASURES)

    def test_is_the_one_that_runs_with_the_engine_asked_for(
        self, monkeypatch: pytest.MonkeyPatch, home: Path, seen: list[Path], capsys: Told
    ) -> None:
        self.runs(monkeypatch, home, engine="vllm")
        assert manage("fake", "--engine", "vllm") == 0
        assert seen == [home]
        assert capsys.readouterr().err.startswith("using the platform that runs from ")

    @pytest.mark.parametrize(("runs", "asked"), [("simulated", "vllm"), ("simulated", "simulated")])
    def test_is_a_private_one_where_another_engine_runs_or_the_pace_is_measured(
        self, monkeypatch: pytest.MonkeyPatch, home: Path, seen: list[Path], runs: str, asked: str
    ) -> None:
        self.runs(monkeypatch, home, engine=runs)
        assert manage("fake", "--engine", asked) == 0
        assert seen == [home / "private" / asked]

    def test_that_does_not_start_ends_it_with_one(
        self, monkeypatch: pytest.MonkeyPatch, seen: list[Path], capsys: Told
    ) -> None:
        def private(*, engine: str) -> AbstractContextManager[Instance]:
            raise InstanceFailed(f"`manage.py up` with {engine} ended with 1")

        monkeypatch.setattr(command, "private_instance", private)
        assert manage("fake", "--engine", "simulated", "--json") == 1
        captured = capsys.readouterr()
        assert (seen, captured.out) == ([], "")
        assert "did not run whole: `manage.py up` with simulated ended with 1" in captured.err


class TestTheCommandLine:
    def test_hands_over_what_is_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        got: list[Options] = []

        async def run(_: Any, options: Options, __: Start) -> Finished:
            got.append(options)
            return Finished(measures=MEASURES, record={})

        given(monkeypatch, run)
        words = "--requests 5 --concurrency 2 --max-tokens 9 --prompt-words 3 --engine simulated --trace a --trace b"
        assert manage("fake", *words.split()) == 0
        traces = (Path("a"), Path("b"))
        assert got == [
            Options(engine="simulated", requests=5, concurrency=2, max_tokens=9, prompt_words=3, traces=traces)
        ]

    def test_names_every_bench(self, capsys: Told) -> None:
        assert manage("--list") == 0
        assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(BENCHES)

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [((), "name a bench"), (("no-such",), "invalid choice"), (("queue", "--requests", "0"), "--requests")],
    )
    def test_ends_with_two_where_it_is_wrong(self, arguments: tuple[str, ...], said: str, capsys: Told) -> None:
        assert manage(*arguments) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert said in captured.err
