"""One suite for every ClickHouse port: the embedded owner, its client over the socket, and a server.

The server's part runs when TEST_CLICKHOUSE_URL names an empty database (ClickHouse 23.8 or newer); it is skipped, and
says so, otherwise.
"""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from stores.clickhouse import ClickHouse, ClickHouseError, ClickHouseUnavailable, Reader
from stores.clickhouse_chdb import ChdbOwner
from stores.clickhouse_socket import CONNECTIONS_MAX, ChdbClient, ChdbServer
from stores.clickhouse_url import open_clickhouse, open_writer

TABLE = """CREATE TABLE port_rows (
    id UUID, at DateTime64(3, 'UTC'), cost Decimal(38, 12), tokens Int32, histogram Map(UInt16, UInt32),
    verdicts Array(LowCardinality(String)), label LowCardinality(String), text String, flag Bool,
    CONSTRAINT positive CHECK tokens >= 0
) ENGINE = ReplacingMergeTree ORDER BY id SETTINGS non_replicated_deduplication_window = 100"""
COLUMNS = ("id", "at", "cost", "tokens", "histogram", "verdicts", "label", "text", "flag")
ID = "0192f0c1-0000-7000-8000-00000000000"
HOSTILE = "it's\n\ta \\ \"line\" {x:String} ' OR 1=1 -- Ünïcode 🙂"


def row(number: int, *, tokens: int = 7, text: str = HOSTILE) -> tuple[object, ...]:
    at = datetime(2026, 3, 29, 1, 59, 59, 999_000, tzinfo=UTC)
    return (f"{ID}{number}", at, Decimal("0.000000000123"), tokens, {3: 4, 255: 70_000}, ["a'b"], "ok", text, True)


@contextmanager
def serving(owner: ChdbOwner, path: Path) -> Iterator[None]:
    """The socket server on a loop of its own, as in the meter."""
    ready, done = threading.Event(), None
    loop = asyncio.new_event_loop()

    async def run() -> None:
        nonlocal done
        done = asyncio.Event()
        async with ChdbServer(owner=owner, path=path):
            ready.set()
            await done.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    assert ready.wait(10)
    try:
        yield
    finally:
        assert done is not None
        loop.call_soon_threadsafe(done.set)
        thread.join(10)
        loop.close()


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChdbOwner]:
    """chDB has one directory for the life of a process; another test module may have opened it."""
    opened = ChdbOwner(directory=tmp_path_factory.mktemp("chdb"))
    yield opened
    opened.close()


@pytest.fixture(params=["chdb", "server"])
def clickhouse(request: pytest.FixtureRequest) -> Iterator[ClickHouse]:
    if request.param == "chdb":
        port: ClickHouse = request.getfixturevalue("owner")
    else:
        url = os.environ.get("TEST_CLICKHOUSE_URL")
        if not url:
            pytest.skip("no ClickHouse server: set TEST_CLICKHOUSE_URL to run the native port's part")
        port = open_writer(url, directory=Path("unused"))
    port.command("DROP TABLE IF EXISTS port_rows SYNC")
    port.command(TABLE)
    yield port
    port.command("DROP TABLE IF EXISTS port_rows SYNC")


@pytest.fixture
def reader(clickhouse: ClickHouse, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reader]:
    """What another process reads by: the socket for chDB, a connection of its own for a server."""
    if isinstance(clickhouse, ChdbOwner):
        path = tmp_path / "meter.sock"
        with serving(clickhouse, path):
            yield open_clickhouse(f"chdb+unix://{path}")
    else:
        opened = open_clickhouse(os.environ["TEST_CLICKHOUSE_URL"])
        yield opened
        opened.close()


class TestClickHousePort:
    def test_gives_back_every_type_as_it_was_inserted(self, clickhouse: ClickHouse, reader: Reader) -> None:
        clickhouse.insert(table="port_rows", columns=COLUMNS, rows=[row(1)], token="types")
        for port in (clickhouse, reader):
            found = port.execute("SELECT * FROM port_rows")
            assert found == [dict(zip(COLUMNS, row(1), strict=True))]
            assert isinstance(found[0]["cost"], Decimal)

    def test_drops_a_batch_that_repeats_its_token(self, clickhouse: ClickHouse) -> None:
        for _ in range(3):
            clickhouse.insert(table="port_rows", columns=COLUMNS, rows=[row(1), row(2)], token="same")
        clickhouse.insert(table="port_rows", columns=COLUMNS, rows=[row(3)], token="other")
        assert clickhouse.execute("SELECT count() AS n FROM port_rows") == [{"n": 3}]

    def test_inserts_a_large_batch_as_one_block_of_one_token(self, clickhouse: ClickHouse) -> None:
        rows = [(f"0192f0c1-0000-7000-8000-{n:012x}", *row(0, text="x" * 200)[1:]) for n in range(10_000)]
        for _ in range(2):
            clickhouse.insert(table="port_rows", columns=COLUMNS, rows=rows, token="large")
        counted = "SELECT count() AS n, uniqExact(_part) AS parts FROM port_rows"
        assert clickhouse.execute(counted) == [{"n": 10_000, "parts": 1}]

    def test_refuses_the_whole_block_for_one_bad_row(self, clickhouse: ClickHouse) -> None:
        with pytest.raises(ClickHouseError) as caught:
            clickhouse.insert(table="port_rows", columns=COLUMNS, rows=[row(1), row(2, tokens=-1)], token="bad")
        assert caught.value.code == 469
        assert not isinstance(caught.value, ClickHouseUnavailable)
        assert clickhouse.execute("SELECT count() AS n FROM port_rows") == [{"n": 0}]

    def test_inserts_nothing_for_no_rows(self, clickhouse: ClickHouse) -> None:
        clickhouse.insert(table="port_rows", columns=COLUMNS, rows=[], token="none")
        assert clickhouse.execute("SELECT id FROM port_rows") == []

    def test_binds_parameters_instead_of_pasting_them(self, clickhouse: ClickHouse, reader: Reader) -> None:
        clickhouse.insert(table="port_rows", columns=COLUMNS, rows=[row(1), row(2, text="other")], token="bind")
        one = "SELECT tokens FROM port_rows WHERE text = {text:String} AND tokens = {tokens:Int64}"
        many = "SELECT count() AS n FROM port_rows WHERE text IN {texts:Array(String)}"
        for port in (clickhouse, reader):
            assert port.execute(one, {"text": HOSTILE, "tokens": 7}) == [{"tokens": 7}]
            assert port.execute(many, {"texts": [HOSTILE, "other", "'"]}) == [{"n": 2}]
            assert port.execute("SELECT {text:String} AS text", {"text": HOSTILE}) == [{"text": HOSTILE}]

    def test_names_the_fault_of_a_wrong_query(self, clickhouse: ClickHouse, reader: Reader) -> None:
        for port in (clickhouse, reader):
            with pytest.raises(ClickHouseError, match="nowhere") as caught:
                port.execute("SELECT * FROM nowhere")
            assert caught.value.code == 60
            with pytest.raises(ClickHouseError) as caught:
                port.execute("SELECT {absent:String}")
            assert caught.value.code == 456

    def test_takes_a_column_that_is_added_with_rows_there(self, clickhouse: ClickHouse, reader: Reader) -> None:
        clickhouse.insert(table="port_rows", columns=COLUMNS, rows=[row(1)], token="before")
        for _ in range(2):
            clickhouse.command(
                "ALTER TABLE port_rows ADD COLUMN IF NOT EXISTS cut Bool DEFAULT false AFTER text,"
                " ADD COLUMN IF NOT EXISTS by LowCardinality(String) ALIAS if(cut AND tokens = 7, 'budget', '')"
            )
        clickhouse.insert(table="port_rows", columns=(*COLUMNS, "cut"), rows=[(*row(2), True)], token="after")
        clickhouse.insert(table="port_rows", columns=COLUMNS, rows=[row(3)], token="older-writer")
        for port in (clickhouse, reader):
            assert port.execute("SELECT cut, by FROM port_rows ORDER BY toString(id)") == [
                {"cut": False, "by": ""},
                {"cut": True, "by": "budget"},
                {"cut": False, "by": ""},
            ]

    def test_sums_decimals_exactly(self, clickhouse: ClickHouse) -> None:
        clickhouse.insert(table="port_rows", columns=COLUMNS, rows=[row(n) for n in range(9)], token="sum")
        found = clickhouse.execute("SELECT sum(cost) AS cost FROM port_rows")
        assert found == [{"cost": Decimal("0.000000001107")}]


class TestChdbReader:
    @pytest.mark.parametrize(
        "sql",
        [
            "CREATE TABLE stolen (a UInt8) ENGINE = Memory",
            "INSERT INTO kept (tokens) VALUES (1)",
            "DROP TABLE kept",
            "SELECT * FROM file('/etc/hostname', 'LineAsString')",
            "SET readonly = 0",
            "SELECT 1 SETTINGS max_execution_time = 0",
        ],
    )
    def test_reads_and_nothing_else(self, owner: ChdbOwner, tmp_path: Path, sql: str) -> None:
        path = tmp_path / "s"
        owner.command("CREATE TABLE IF NOT EXISTS kept (tokens Int32) ENGINE = MergeTree ORDER BY tokens")
        with serving(owner, path), pytest.raises(ClickHouseError) as caught:
            ChdbClient(path=path).execute(sql)
        assert caught.value.code == 164
        assert owner.execute("SELECT count() AS n FROM kept") == [{"n": 0}]

    def test_is_open_to_its_own_user_only(self, owner: ChdbOwner, tmp_path: Path) -> None:
        path = tmp_path / "s"
        with serving(owner, path):
            assert path.stat().st_mode & 0o777 == 0o600
        assert not path.exists()

    def test_works_below_a_path_too_long_for_a_socket_address(self, owner: ChdbOwner, tmp_path: Path) -> None:
        path = tmp_path / ("deep" * 30) / "meter.sock"
        with serving(owner, path):
            assert ChdbClient(path=path).execute("SELECT 1 AS one") == [{"one": 1}]

    def test_says_that_the_meter_is_away(self, tmp_path: Path) -> None:
        with pytest.raises(ClickHouseUnavailable, match="meter"):
            ChdbClient(path=tmp_path / "s").execute("SELECT 1")

    def test_survives_a_reader_that_talks_nonsense(self, owner: ChdbOwner, tmp_path: Path) -> None:
        import socket

        path = tmp_path / "s"
        with serving(owner, path):
            for junk in (b"\xff\xff\xff\xff", b"\x00\x00\x00\x02\xc1\xc1", b"\x00\x00\x00\x01\x80"):
                with socket.socket(socket.AF_UNIX) as rude:
                    rude.connect(str(path))
                    rude.settimeout(10)
                    rude.sendall(junk)
                    assert rude.recv(1) == b""
            assert ChdbClient(path=path).execute("SELECT 1 AS one") == [{"one": 1}]

    def test_answers_many_readers_each_with_its_own_rows(self, owner: ChdbOwner, tmp_path: Path) -> None:
        path = tmp_path / "s"
        answers: dict[int, object] = {}

        def ask(number: int) -> None:
            answers[number] = ChdbClient(path=path).execute("SELECT {n:UInt32} AS n", {"n": number})[0]["n"]

        with serving(owner, path):
            threads = [threading.Thread(target=ask, args=(number,)) for number in range(CONNECTIONS_MAX)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
        assert answers == {number: number for number in range(CONNECTIONS_MAX)}


SECOND_OWNER = """
import sys
from pathlib import Path
from stores.clickhouse import ClickHouseUnavailable
from stores.clickhouse_chdb import ChdbOwner
try:
    ChdbOwner(directory=Path(sys.argv[1]))
except ClickHouseUnavailable as error:
    print("refused:", error)
"""
FORKED = """
import os, sys
from pathlib import Path
from stores.clickhouse import ClickHouseError
from stores.clickhouse_chdb import ChdbOwner
owner = ChdbOwner(directory=Path(sys.argv[1]))
child = os.fork()
if child == 0:
    try:
        owner.execute("SELECT 1")
    except ClickHouseError as error:
        print("refused:", error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(owner.execute("SELECT 1 AS one"))
"""


def run_python(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )
    return done.stdout


class TestChdbOwner:
    def test_refuses_a_second_owner(self, tmp_path: Path) -> None:
        holder = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import sys; from pathlib import Path; from stores.clickhouse_chdb import ChdbOwner\n"
                "owner = ChdbOwner(directory=Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()",
                str(tmp_path / "data"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        with holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            assert "one owner" in run_python(SECOND_OWNER, str(tmp_path / "data"))
            holder.communicate("")
        assert run_python(SECOND_OWNER, str(tmp_path / "data")) == ""

    def test_is_not_used_after_a_fork(self, tmp_path: Path) -> None:
        said = run_python(FORKED, str(tmp_path / "data"))
        assert "refused: chDB was opened before a fork" in said
        assert "[{'one': 1}]" in said


class TestNativeClickHouse:
    def test_says_that_no_server_answers(self) -> None:
        import socket

        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))  # bound and not listening: refused at once
            port = open_clickhouse(
                f"clickhouse://default@127.0.0.1:{unused.getsockname()[1]}/default?connect_timeout=5"
            )
            with pytest.raises(ClickHouseUnavailable, match="does not answer"):
                port.execute("SELECT 1")
            with pytest.raises(ClickHouseUnavailable, match="does not answer"):
                port.execute("SELECT 1")  # the failed client was given back
            port.close()


class TestOpenClickhouse:
    @pytest.mark.parametrize("url", ["http://localhost:8123", "chdb+unix:relative.sock", "", "postgres://h/d"])
    def test_refuses_an_address_it_cannot_mean(self, url: str) -> None:
        with pytest.raises(ValueError, match="CLICKHOUSE_URL"):
            open_clickhouse(url)
