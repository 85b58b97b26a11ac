"""Batching, order, retries, aborts and back-pressure of the step calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from contracts.clock import FakeClock
from contracts.tokens import TokenCounts
from fairqueue.messages import Abort, AbortReason, StepEntry, StepReply
from tests.unit.workers.cast import claim
from workers import publish
from workers.publish import Lane, Publisher


class Script:
    """Stands where the `step` script is: takes entries when it is let, and answers what it is told."""

    def __init__(self) -> None:
        self.calls: list[list[StepEntry]] = []
        self.holding: list[list[str]] = []
        self.aborts: list[Abort] = []
        self.failures = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.entered = asyncio.Event()

    async def step(self, *, worker_id, entries, holding):
        assert worker_id == "w1"
        self.entered.set()
        await self.gate.wait()
        self.calls.append(list(entries))
        self.holding.append(list(holding))
        if self.failures:
            self.failures -= 1
            raise RedisConnectionError("away")
        return StepReply(aborts=self.aborts, stale=[])

    def frames(self, request_id: str) -> list[tuple[int, bytes]]:
        """What a log would hold: repeats ignored, by seq."""
        log: dict[int, bytes] = {}
        for entries in self.calls:
            for entry in entries:
                if entry.request_id == request_id:
                    log |= {entry.first_seq + offset: frame for offset, frame in enumerate(entry.frames)}
        return sorted(log.items())


@asynccontextmanager
async def publisher(
    script: Script, *, pending_max: int = 100, progressing: bool = False, step_seconds: float = 60.0
) -> AsyncIterator[Publisher]:
    made = Publisher(
        queue=script,
        worker_id="w1",
        clock=FakeClock(),
        progressing=lambda: progressing,
        step_seconds=step_seconds,
        frames_pending_max=pending_max,
    )
    async with asyncio.TaskGroup() as group:
        running = group.create_task(made.run())
        async with asyncio.timeout(10):
            yield made
        running.cancel()


def put(one: Publisher, lane: Lane, *frames: bytes, tokens: int = 1) -> None:
    one.put(lane, frames=list(frames), counts=TokenCounts(prompt=3, completion=tokens), delivered_tokens=tokens)


class TestBatching:
    async def test_sends_what_arrived_during_a_call_in_the_next_one(self):
        script = Script()
        script.gate.clear()
        async with publisher(script) as one:
            a, b = one.open(claim("a")), one.open(claim("b"))
            put(one, a, b"1")
            await script.entered.wait()
            put(one, a, b"2", b"3", tokens=3)
            put(one, b, b"x")
            script.gate.set()
            await a.flushed.wait()
            await b.flushed.wait()
        sent = [[(entry.request_id, entry.first_seq, entry.frames) for entry in call] for call in script.calls]
        assert sent == [[("a", 1, [b"1"])], [("a", 2, [b"2", b"3"]), ("b", 1, [b"x"])]]
        assert script.holding[-1] == ["a", "b"]
        assert a.last_seq == 3
        assert a.logged_tokens == 3

    async def test_sends_a_first_frame_without_a_token_together_with_the_first_token(self):
        script = Script()
        async with publisher(script) as one:
            lane = one.open(claim("a"))
            put(one, lane, b"role", tokens=0)
            for _ in range(5):
                await asyncio.sleep(0)
            put(one, lane, b"text")
            await lane.flushed.wait()
        assert [entry.frames for call in script.calls for entry in call] == [[b"role", b"text"]]

    async def test_repeats_the_same_frames_until_the_script_answers(self, monkeypatch):
        monkeypatch.setattr(publish, "RETRY_SECONDS", 0)
        script = Script()
        script.failures = 3
        async with publisher(script) as one:
            lane = one.open(claim("a"))
            put(one, lane, b"1", b"2")
            await lane.flushed.wait()
        assert len(script.calls) == 4
        assert script.calls[0] == script.calls[3]
        assert script.frames("a") == [(1, b"1"), (2, b"2")]

    async def test_continues_the_seq_of_an_earlier_log(self):
        script = Script()
        async with publisher(script) as one:
            lane = one.open(claim("a", log_length=7))
            put(one, lane, b"8")
            await lane.flushed.wait()
        assert script.frames("a") == [(8, b"8")]


class TestIds:
    async def test_go_with_their_frames(self):
        script = Script()
        async with publisher(script) as one:
            lane = one.open(claim("a"))
            counts = TokenCounts(prompt=3, completion=2)
            one.put(lane, frames=[b"1", b"2"], counts=counts, delivered_tokens=2, ids=[b"\1\0\0\0", b""])
            await lane.flushed.wait()
            put(one, lane, b"3", tokens=3)
            await lane.flushed.wait()
            one.put(lane, frames=[b"4"], counts=counts, delivered_tokens=4, ids=[b"\4\0\0\0"])
            await lane.flushed.wait()
        assert [list(entry.ids) for call in script.calls for entry in call] == [[b"\1\0\0\0", b""], [], []]
        assert not lane.replayable  # once a frame came without

    async def test_are_dropped_with_the_frames_that_were_never_sent(self):
        script = Script()
        script.gate.clear()
        async with publisher(script) as one:
            lane = one.open(claim("a"))
            counts = TokenCounts(prompt=3, completion=1)
            one.put(lane, frames=[b"1"], counts=counts, delivered_tokens=1, ids=[b"\1\0\0\0"])
            await script.entered.wait()
            one.put(lane, frames=[b"2"], counts=counts, delivered_tokens=2, ids=[b"\2\0\0\0"])
            async with asyncio.TaskGroup() as group:
                group.create_task(one.seal(lane))
                await asyncio.sleep(0)
                script.gate.set()
            assert lane.pending_ids == lane.pending == []
        assert [list(entry.ids) for call in script.calls for entry in call] == [[b"\1\0\0\0"]]

    async def test_begin_with_what_earlier_attempts_were_billed_for(self):
        script = Script()
        async with publisher(script) as one:
            lane = one.open(claim("a", log_length=7, counts=TokenCounts(prompt=3, completion=5)))
            assert (lane.counts.completion, lane.delivered_tokens, lane.logged_tokens) == (5, 5, 5)


class TestHeartbeat:
    @pytest.mark.parametrize(("progressing", "waits", "expected"), [
        (False, True, False), (True, True, True), (False, False, True),
    ])  # fmt: skip
    async def test_extends_a_lease_only_with_progress(self, progressing, waits, expected):
        script = Script()
        async with publisher(script, progressing=progressing, step_seconds=0.0) as one:
            lane = one.open(claim("a"))
            lane.waits_for_engine = waits
            while not any(script.calls):  # noqa: ASYNC110 - the script has no event for it
                await asyncio.sleep(0)
        [entry] = next(call for call in script.calls if call)
        assert (entry.frames, entry.first_seq, entry.progressed) == ([], 1, expected)


class TestAborts:
    async def test_reach_the_lane_and_stop_its_frames(self):
        script = Script()
        script.aborts = [Abort(request_id="a", reason=AbortReason.CANCELLED)]
        heard: list[str] = []
        async with publisher(script) as one:
            lane = one.open(claim("a"))
            lane.on_abort = lambda: heard.append(lane.abort_reason)
            put(one, lane, b"1")
            while not lane.abort_reason:  # noqa: ASYNC110 - a lane has no event for it
                await asyncio.sleep(0)
            put(one, lane, b"2")
            assert await one.seal(lane) == 1
        assert heard == ["cancelled"]
        assert script.frames("a") == [(1, b"1")]

    async def test_seal_waits_for_frames_on_their_way_and_drops_the_rest(self):
        script = Script()
        script.gate.clear()
        async with publisher(script) as one:
            lane = one.open(claim("a"))
            put(one, lane, b"1")
            await script.entered.wait()
            put(one, lane, b"2", tokens=2)
            async with asyncio.TaskGroup() as group:
                sealed = group.create_task(one.seal(lane))
                await asyncio.sleep(0)
                assert not sealed.done()
                script.gate.set()
            assert sealed.result() == 1
        assert script.frames("a") == [(1, b"1")]
        assert lane.logged_tokens == 1

    async def test_end_every_lane_when_redis_stays_away(self, monkeypatch):
        monkeypatch.setattr(publish, "RETRY_SECONDS", 0)
        monkeypatch.setattr(publish, "LOST_SECONDS", -1.0)
        script = Script()
        script.failures = 1
        async with publisher(script) as one:
            lane = one.open(claim("a"))
            put(one, lane, b"1")
            await lane.flushed.wait()
        assert lane.abort_reason == "fence"


class TestRoom:
    async def test_is_closed_while_too_much_is_pending(self):
        script = Script()
        script.gate.clear()
        async with publisher(script, pending_max=2) as one:
            lane = one.open(claim("a"))
            put(one, lane, b"1", b"2")
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(one.room())
                await asyncio.sleep(0)
                assert not waiting.done()
                script.gate.set()
            assert waiting.done()

    async def test_comes_back_when_a_lane_is_closed(self):
        script = Script()
        script.gate.clear()
        async with publisher(script, pending_max=1) as one:
            lane = one.open(claim("a"))
            put(one, lane, b"1")
            await script.entered.wait()
            one.close(lane)
            await one.room()
            script.gate.set()
