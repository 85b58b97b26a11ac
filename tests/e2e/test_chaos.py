"""Chaos: a platform of its own, its parts killed, frozen and cut off at random under load; then every book is compared.

A few rounds here (`WEIR_CHAOS_ROUNDS`, `WEIR_CHAOS_SEED`); more by hand with `manage.py chaos`. It does not touch the
platform that the other tests share.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from decimal import Decimal

import pytest

from controlplane.local.ports import find_free
from infra.chaos.network import Proxy
from infra.chaos.round import Result
from infra.chaos.run import run_chaos

ROUNDS = int(os.environ.get("WEIR_CHAOS_ROUNDS", "2"))
SEED = int(os.environ.get("WEIR_CHAOS_SEED", "11"))
CALLS = 30
ROUND_SECONDS = 200  # on a busy machine; half a minute on a quiet one
WAIT_SECONDS = 10.0


class TestChaos:
    @pytest.mark.slow
    @pytest.mark.timeout(300 + ROUND_SECONDS * ROUNDS)
    async def test_loses_nothing_doubles_nothing_and_leaves_no_hold(self) -> None:
        told: list[int] = []

        def tell(number: int, _: Result) -> None:
            told.append(number)

        results = await run_chaos(rounds=ROUNDS, seed=SEED, count=CALLS, engine="simulated", told=tell)
        assert told == list(range(1, ROUNDS + 1))
        assert [len(result.calls) for result in results] == [CALLS] * ROUNDS
        assert all(len(result.hit) == len(result.plan.faults) for result in results)
        broken = [
            f"seed {result.plan.seed} ({'; '.join(result.hit)}): {violation}\n" + "\n".join(result.evidence)
            for result in results
            for violation in result.violations
        ]
        assert not broken, "\n".join(broken)
        for result in results:
            explained = int(result.sums["attempt_log_tokens"]) + int(result.sums["from_frames_tokens"])
            assert result.sums["billed_tokens"] == explained
            assert Decimal(result.sums["clickhouse_cost"]) == Decimal(result.sums["ledger_cost"])


class TestProxy:
    """The proxy breaks what it is asked to break, and nothing before."""

    async def test_passes_on_what_comes_until_it_is_cut(self) -> None:
        async with _echo() as (proxy, reader, writer, seen):
            writer.write(b"ping")
            assert await asyncio.wait_for(reader.readexactly(4), WAIT_SECONDS) == b"ping"
            assert seen == [b"ping"]
            assert proxy.cut() == 1
            assert await _ended(reader)

    async def test_loses_replies_to_what_has_arrived(self) -> None:
        async with _echo() as (proxy, reader, writer, seen):
            writer.write(b"a")
            await asyncio.wait_for(reader.readexactly(1), WAIT_SECONDS)
            async with asyncio.TaskGroup() as group:
                losing = group.create_task(proxy.lose_replies(seconds=0.3))
                await asyncio.sleep(0)  # it has begun
                writer.write(b"b")
            assert losing.result() == 1
            assert seen == [b"a", b"b"]
            assert await _ended(reader)

    async def test_half_open_lets_nothing_through(self) -> None:
        async with _echo() as (proxy, reader, writer, seen):
            writer.write(b"a")
            await asyncio.wait_for(reader.readexactly(1), WAIT_SECONDS)
            async with asyncio.TaskGroup() as group:
                group.create_task(proxy.half_open(seconds=0.3))
                await asyncio.sleep(0)  # it has begun
                writer.write(b"b")
            assert seen == [b"a"]
            assert await _ended(reader)


Echo = tuple[Proxy, asyncio.StreamReader, asyncio.StreamWriter, list[bytes]]


@asynccontextmanager
async def _echo() -> AsyncIterator[Echo]:
    """A client of an echo server behind a proxy, and what the server has seen."""
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(64):
                seen.append(piece)
                writer.write(piece)
        except OSError:
            pass
        finally:
            writer.close()

    port = find_free()
    outside = find_free(taken=[port])
    proxy = Proxy(port=outside, upstream=port)
    server = await asyncio.start_server(serve, "127.0.0.1", port)
    async with AsyncExitStack() as stack:
        stack.callback(server.close)
        await stack.enter_async_context(proxy.serving())
        reader, writer = await asyncio.open_connection("127.0.0.1", outside)
        stack.callback(writer.close)
        yield proxy, reader, writer, seen


async def _ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(), WAIT_SECONDS) == b""
    except OSError:
        return True
