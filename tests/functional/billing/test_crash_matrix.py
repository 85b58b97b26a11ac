"""kill -9 at every arrow between an engine's last token and the ledger: nothing is lost, nothing is billed twice.

Every second arrow by one seed in the suite; `CRASH_SEEDS=20` runs all of them by twenty. What a seed draws: token
counts, ends (whole, cancelled, a worker that hangs, a settlement that fails), the turns of meter and ledger, and at
which passing of the arrow the process dies.
"""

import json
import os
import random
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from billing.models import LedgerEntry, UsagePosting
from stores.redis_blocking import blocking_redis
from tenants.models import Plan, Tenant
from workers.attempts import read_attempts

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

ROOT = Path(__file__).resolve().parents[3]
SEEDS = int(os.environ.get("CRASH_SEEDS", "0"))
REQUESTS = 8
STARTS_MAX = 10
LATER_US = 60_000_000
ARROWS = (
    *("worker.before_step", "worker.after_step", "worker.before_append", "worker.after_append", "worker.after_end"),
    *("worker.after_settle", "worker.after_ack", "settler.after_reap", "settler.before_settle", "settler.after_settle"),
    *("settler.after_ack", "meter.before_manifest", "meter.after_manifest", "meter.after_insert", "meter.after_feed"),
    *("meter.after_ack", "ledger.before_commit", "ledger.after_commit", "ledger.after_ack"),
)
# Passed once at least, whatever the seed; the others twice.
ONCE = frozenset({"settler.after_reap", "settler.before_settle", "settler.after_settle", "settler.after_ack"})


class Server:
    """`crash_stage` as a process, told by lines."""

    def __init__(self, home: Path, valkey_url: str) -> None:
        found = connection.settings_dict
        database = f"postgresql://{found['USER']}:{found['PASSWORD']}@{found['HOST']}:{found['PORT']}/{found['NAME']}"
        environment = os.environ | {"DATABASE_URL": database, "REDIS_URL": valkey_url, "WEIR_HOME": str(home)}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "platform"), str(ROOT)])
        self._log = home / "stage.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.functional.billing.crash_stage"],
                env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip

    def run(self, plan: dict[str, Any]) -> int:
        """The exit code of a process that did it; negative when a signal ended it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(plan) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, self._log.read_text()[-3000:]
        return int(answer)

    def said(self) -> str:
        return self._log.read_text()[-3000:]

    def stop(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


@pytest.fixture
def server(transactional_db: None, valkey_url: str, tmp_path: Path) -> Iterator[Server]:
    with blocking_redis(valkey_url) as redis:
        redis.flushall()
    started = Server(tmp_path, valkey_url)
    yield started
    started.stop()


@pytest.fixture
def payers(transactional_db: None) -> list[str]:
    plan = Plan.objects.create(name="plan")
    return [str(Tenant.objects.create(name=name, plan=plan, currency="USD").pk) for name in ("acme", "basic")]


class TestCrashMatrix:
    @pytest.mark.timeout(180 + 240 * SEEDS)
    def test_bills_each_ended_request_once_wherever_it_is_killed(
        self, server: Server, payers: list[str], valkey_url: str, tmp_path: Path
    ) -> None:
        killed, spared = 0, []
        arrows = ARROWS if SEEDS else ARROWS[::2]
        for seed in range(SEEDS or 1):
            for arrow in arrows:
                home = tmp_path / f"{arrow}-{seed}"
                home.mkdir()
                dice = random.Random(f"{arrow}/{seed}")
                passing = 1 if arrow in ONCE else dice.choice((1, 2))
                plan = {
                    "seed": dice.randrange(2**32),
                    "home": str(home),
                    "redis": valkey_url,
                    "pool": home.name,
                    "tenants": payers,
                    "requests": [str(uuid.uuid4()) for _ in range(REQUESTS)],
                }
                first = {**plan, "fault": f"{arrow}:{passing}", "admits": True, "worker": "w1", "shift_us": 0}
                ended = server.run(first)
                killed += ended == -signal.SIGKILL
                if ended != -signal.SIGKILL:
                    spared.append(f"{home.name} {ended}")
                again = {**plan, "fault": "", "admits": False, "worker": "w2", "shift_us": LATER_US}
                # Whatever else ends it, a store that is late on a busy machine say, is one more crash.
                tries = (server.run(again) for _ in range(STARTS_MAX))
                assert 0 in tries, f"{home.name}: it does not come up again\n{server.said()}"
                judge(home, plan)
        assert killed > len(arrows) * max(SEEDS, 1) * 0.8, spared


def judge(home: Path, plan: dict[str, Any]) -> None:
    """The books after recovery, against each other and against the engine's side."""
    answer = json.loads((home / "answer.json").read_text())
    states, rows = answer["states"], {row["request_id"]: row for row in answer["rows"]}
    assert answer["lag"] == 0, home.name
    assert set(states.values()) <= {"settled"}, (home.name, states)
    assert states.keys() == rows.keys(), home.name
    assert answer["raw"] == len(rows), f"{home.name}: a row twice without FINAL"
    posted = {str(row.request_id): row for row in UsagePosting.objects.filter(request_id__in=list(states))}
    assert posted.keys() == rows.keys(), home.name
    assert {key: Decimal(row["cost"]) for key, row in rows.items()} == {key: row.amount for key, row in posted.items()}
    entries = LedgerEntry.objects.filter(transaction_id__in={row.transaction_id for row in posted.values()})
    owed = sum((entry.amount for entry in entries if entry.amount > 0), Decimal(0))
    assert owed == sum((Decimal(row["cost"]) for row in rows.values()), Decimal(0)), home.name
    assert sum((entry.amount for entry in entries), Decimal(0)) == 0
    engine = {}
    for line in read_attempts(home / "attempts" / "w1.jsonl"):
        engine[str(line["request_id"]), line["attempt"]] = line["counts"]
    for key, row in rows.items():
        counted = engine.get((key, row["attempt"]))
        if row["outcome"] == "ok":
            assert counted is not None, (home.name, row)
            said = counted["prompt"], counted["cached"], counted["completion"]
            assert (row["prompt_tokens"], row["cached_tokens"], row["completion_tokens"]) == said, home.name
        elif counted is not None:
            assert row["completion_tokens"] <= counted["completion"], home.name
