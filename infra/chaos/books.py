"""Reads every book after a round: ClickHouse, ledger, attempt logs, request states, and what is left in Valkey.

Called by `round`. Invariant: each is read from where it is kept (SQL, keys, files), past the platform's own code.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
from redis import Redis

from infra.chaos.clients import Client, usage_of
from infra.chaos.facts import AttemptLine, Books, Left, Posting, Row, State, Tokens
from infra.chaos.installation import Installation
from stores.clickhouse_socket import ChdbClient

STORE_SECONDS = 10.0
_ROWS = """SELECT toString(request_id) AS id, revision, tenant_id, prompt_tokens, cached_tokens, completion_tokens,
    delivered_tokens, cost, outcome, attempt
FROM inference_requests_audit {final}"""


async def read_books(installation: Installation, client: Client, *, accepted: Mapping[str, str]) -> Books:
    """All that is kept since the installation began; states of the accepted requests only (id -> tenant).

    Raises psycopg.Error, RedisError, ClickHouseError, OSError while a store is away.
    """
    rows = await asyncio.to_thread(read_rows, installation.instance.home)
    postings, balance, owed = await asyncio.to_thread(read_ledger, installation.settings["DATABASE_URL"])
    answers = await client.states(dict(accepted))
    return Books(
        rows=rows,
        postings=postings,
        attempts=tuple(read_attempt_logs(installation.instance.home / "attempts")),
        states=tuple(state_of(request_id, *answer) for request_id, answer in answers.items()),
        left=await asyncio.to_thread(read_left, installation.valkey_url),
        ledger_balance=balance,
        ledger_owed=owed,
    )


def read_rows(home: Path) -> tuple[Row, ...]:
    """Every row with FINAL, with the number of rows under its key without."""
    client = ChdbClient(path=home / "run" / "meter.sock")
    try:
        copies: dict[tuple[str, int], int] = {}
        for item in client.execute(_ROWS.format(final="")):
            key = str(item["id"]), int(item["revision"])
            copies[key] = copies.get(key, 0) + 1
        final = client.execute(_ROWS.format(final="FINAL"))
    finally:
        client.close()
    return tuple(
        Row(
            request_id=str(item["id"]),
            revision=int(item["revision"]),
            tenant_id=str(item["tenant_id"]),
            tokens=Tokens(int(item["prompt_tokens"]), int(item["cached_tokens"]), int(item["completion_tokens"])),
            delivered=int(item["delivered_tokens"]),
            cost=Decimal(item["cost"]),
            outcome=str(item["outcome"]),
            attempt=int(item["attempt"]),
            copies=copies.get((str(item["id"]), int(item["revision"])), 0),
        )
        for item in final
    )


def read_ledger(url: str) -> tuple[tuple[Posting, ...], Decimal, Decimal]:
    """(usage postings, sum of all entries, sum of what tenants owe), of one moment."""
    with psycopg.connect(url, connect_timeout=int(STORE_SECONDS)) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        found = connection.execute("SELECT request_id::text, revision, amount FROM billing_usageposting").fetchall()
        sums = connection.execute(
            "SELECT coalesce(sum(amount), 0), coalesce(sum(amount) FILTER (WHERE a.tenant_id IS NOT NULL), 0) "
            "FROM billing_ledgerentry e JOIN billing_ledgeraccount a ON a.id = e.account_id"
        ).fetchone()
    assert sums is not None
    postings = tuple(Posting(request_id=item[0], revision=item[1], amount=item[2]) for item in found)
    return postings, Decimal(sums[0]), Decimal(sums[1])


def read_attempt_logs(folder: Path) -> Iterable[AttemptLine]:
    """Every whole line of every worker's log; a line that a crash cut is not one."""
    for path in sorted(folder.glob("*.jsonl*")) if folder.exists() else ():
        for line in path.read_bytes().split(b"\n")[:-1]:
            try:
                item = json.loads(line)
            except ValueError:  # cut by a crash, and the next line written behind it
                continue
            counts = item["counts"]
            yield AttemptLine(
                request_id=item["request_id"],
                attempt=int(item["attempt"]),
                tokens=Tokens(counts["prompt"], counts["cached"], counts["completion"]),
                delivered=int(item["delivered_tokens"]),
                outcome=item["outcome"],
            )


def state_of(request_id: str, status: int, document: Mapping[str, Any]) -> State:
    """What GET /v1/requests/{id} said."""
    usage = document.get("usage")
    tokens, cost = usage_of(usage) if usage else (None, None)
    return State(
        request_id=request_id,
        status=str(document.get("status")) if status == 200 else str(status),
        outcome=str(document.get("outcome")),
        tokens=tokens,
        cost=cost,
    )


def read_left(url: str) -> Left:
    """What is in Valkey that should go once all is settled. Raises RedisError."""
    redis: Any = Redis.from_url(url, socket_timeout=STORE_SECONDS, decode_responses=True)  # its types know bytes only
    try:
        holds: list[str] = []
        held: list[str] = []
        for key in redis.scan_iter(match="w:{t:*}:holds", count=1_000):
            holds += redis.zrange(key, 0, -1)
        for key in redis.scan_iter(match="w:{t:*}:use", count=1_000):
            fields = redis.hgetall(key)
            held += [f"{name}={value}" for name, value in fields.items() if name.endswith(":h") and value != "0"]
        pools = [key[: -len("usage")] for key in redis.scan_iter(match="w:{p:*}:usage", count=1_000)]
        return Left(
            holds=tuple(sorted(holds)),
            held=tuple(sorted(held)),
            waiting=sum(int(redis.zcard(f"{pool}act")) for pool in pools),
            running=sum(int(redis.zcard(f"{pool}lease")) for pool in pools),
            unsettled=sum(int(redis.zcard(f"{pool}unsettled")) for pool in pools),
            usage_pending=sum(_pending(redis, f"{pool}usage") for pool in pools),
            poisoned=sum(int(redis.xlen(f"{pool}usage:dead")) for pool in pools),
        )
    finally:
        redis.close()


def _pending(redis: Any, stream: str) -> int:
    groups = redis.xinfo_groups(stream)
    return sum(int(group["pending"]) + int(group["lag"] or 0) for group in groups)
