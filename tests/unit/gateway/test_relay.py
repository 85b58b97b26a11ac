"""The relay against a log in memory: every way in which a mailbox can lose, double or reorder."""

import asyncio

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from contracts.errors import WorkerLost
from contracts.outcomes import JobState
from fairqueue.messages import Ended, Final, LogSlice, Released
from gateway.stream import relay as relay_module
from gateway.stream.mailbox import Inbox, Signal
from gateway.stream.relay import COMPARED_FRAMES, SLOW_PAGE_FRAMES, ClientLost, Relay, StreamDiverged
from tests.unit.gateway.frames import REQUEST, final

FRAMES = [b"f1", b"f2", b"f3", b"f4", b"f5", b"f6"]


class Log:
    """The one method of `FairQueue` that a relay uses."""

    def __init__(self, frames: list[bytes], *, epoch: str = "1-a", ended: Final | None = None) -> None:
        self.frames, self.epoch, self.ended = frames, epoch, ended
        self.reads = self.most = 0

    async def read_log(self, *, request_id: str, after_seq: int, limit: int) -> LogSlice | None:
        assert request_id == REQUEST
        self.reads += 1
        frames = self.frames[after_seq : after_seq + limit]
        self.most = max(self.most, len(frames))
        state = JobState.SETTLED if self.ended else JobState.RUNNING
        return LogSlice(frames=frames, first_seq=after_seq + 1, epoch=self.epoch, state=state, final=self.ended)


def released(first_seq: int, *frames: bytes, epoch: str = "1-a") -> Released:
    return Released(request_id=REQUEST, epoch=epoch, first_seq=first_seq, frames=list(frames))


def ended(last_seq: int, *, epoch: str = "1-a") -> Ended:
    return Ended(request_id=REQUEST, epoch=epoch, last_seq=last_seq, final=final())


def inbox_of(*entries: Released | Ended | Signal) -> Inbox:
    inbox = Inbox(request_id=REQUEST, bytes_max=100_000)
    for entry in entries:
        inbox.put(entry)
    return inbox


async def read(relay: Relay, *, from_log: bool = False, beat_seconds: float = 5.0) -> list[tuple[int, bytes]]:
    seen: list[tuple[int, bytes]] = []
    async for batch in relay.batches(beat_seconds=beat_seconds, from_log=from_log):
        if batch is not None:
            seen += enumerate(batch.frames, start=batch.first_seq)
    return seen


WHOLE = list(enumerate(FRAMES, start=1))


class Away(Log):
    """Does not answer for the first so many reads."""

    def __init__(self, frames: list[bytes], *, reads: int, ended: Final | None = None) -> None:
        super().__init__(frames, ended=ended)
        self.left = reads

    async def read_log(self, *, request_id: str, after_seq: int, limit: int) -> LogSlice | None:
        self.left -= 1
        if self.left >= 0:
            raise RedisConnectionError("restarts")
        return await super().read_log(request_id=request_id, after_seq=after_seq, limit=limit)


class TestAStoreThatRestarts:
    async def test_is_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(relay_module, "LOG_AGAIN_SECONDS", 0.0)
        relay = Relay(queue=Away(FRAMES, reads=5, ended=final()), inbox=inbox_of(Signal.RESYNC))  # type: ignore[arg-type]
        assert await read(relay) == WHOLE
        assert relay.final == final()

    async def test_is_given_up_at_last(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(relay_module, "LOG_AGAIN_SECONDS", 0.0)
        monkeypatch.setattr(relay_module, "LOG_AWAY_SECONDS", 0.0)
        relay = Relay(queue=Away(FRAMES, reads=9), inbox=inbox_of(Signal.RESYNC))  # type: ignore[arg-type]
        with pytest.raises(WorkerLost, match="ask for its events again"):
            await read(relay)


class TestRelay:
    async def test_tells_early_that_nothing_has_come_and_then_keeps_its_beat(self) -> None:
        inbox, beats = inbox_of(), 0
        batches = Relay(queue=Log(FRAMES), inbox=inbox).batches(  # type: ignore[arg-type]
            beat_seconds=5.0, first_beat_seconds=0.0, from_log=False
        )
        async for batch in batches:
            beats += batch is None
            if batch is None:
                inbox.put(released(1, *FRAMES))
                inbox.put(ended(6))
        assert beats == 1

    async def test_hands_frames_on_without_reading_the_log(self) -> None:
        log = Log(FRAMES)
        inbox = inbox_of(released(1, *FRAMES[:2]), released(3, *FRAMES[2:]), ended(6))
        relay = Relay(queue=log, inbox=inbox)
        assert await read(relay) == WHOLE
        assert relay.final == final()
        assert log.reads == 0

    async def test_drops_what_comes_twice_and_what_overlaps(self) -> None:
        inbox = inbox_of(
            released(1, *FRAMES[:3]), released(1, *FRAMES[:3]), released(2, *FRAMES[1:5]), released(6, b"f6"), ended(6)
        )
        assert await read(Relay(queue=Log(FRAMES), inbox=inbox)) == WHOLE

    async def test_fills_a_gap_from_the_log(self) -> None:
        inbox = inbox_of(released(1, b"f1"), released(5, b"f5", b"f6"), ended(6))
        assert await read(Relay(queue=Log(FRAMES), inbox=inbox)) == WHOLE

    async def test_fills_what_is_missing_before_the_end(self) -> None:
        inbox = inbox_of(released(1, b"f1"), ended(6))
        relay = Relay(queue=Log(FRAMES, ended=final()), inbox=inbox)
        assert await read(relay) == WHOLE
        assert relay.final == final()

    async def test_reads_the_log_after_a_reconnect(self) -> None:
        inbox = inbox_of(released(1, b"f1"), Signal.RESYNC)
        assert await read(Relay(queue=Log(FRAMES, ended=final()), inbox=inbox)) == WHOLE

    async def test_resumes_after_what_the_client_has(self) -> None:
        relay = Relay(queue=Log(FRAMES, ended=final()), inbox=inbox_of(), after_seq=4)
        assert await read(relay, from_log=True) == WHOLE[4:]

    async def test_continues_with_another_attempt_that_begins_right_after(self) -> None:
        inbox = inbox_of(released(1, *FRAMES[:3]), released(4, *FRAMES[3:], epoch="2-b"), ended(6, epoch="2-b"))
        relay = Relay(queue=Log(FRAMES, epoch="2-b"), inbox=inbox)
        assert await read(relay) == WHOLE
        assert relay.epoch == "2-b"

    async def test_refuses_to_splice_another_attempt_over_what_was_sent(self) -> None:
        log = Log([b"f1", b"f2", b"x3", b"x4"], epoch="2-b")
        inbox = inbox_of(released(1, *FRAMES[:4]), released(3, b"x3", b"x4", epoch="2-b"), ended(4, epoch="2-b"))
        with pytest.raises(StreamDiverged):
            await read(Relay(queue=log, inbox=inbox))

    async def test_refuses_another_attempt_that_seems_to_begin_right_after_because_its_beginning_was_lost(self) -> None:
        """A failover lost the last two frames; the next attempt wrote its own, and the messages with them were lost."""
        log = Log([b"f1", b"f2", b"x3", b"x4", b"x5"], epoch="2-b")
        inbox = inbox_of(released(1, *FRAMES[:4]), released(5, b"x5", epoch="2-b"), ended(5, epoch="2-b"))
        with pytest.raises(StreamDiverged):
            await read(Relay(queue=log, inbox=inbox))

    async def test_compares_the_log_once_for_each_attempt(self) -> None:
        log = Log(FRAMES[:4], epoch="2-b")
        inbox = inbox_of(released(1, *FRAMES[:3]), released(4, b"f4", epoch="2-b"), released(5, b"f5", epoch="2-b"))
        inbox.put(released(6, b"f6", epoch="2-b"))
        inbox.put(ended(6, epoch="2-b"))
        relay = Relay(queue=log, inbox=inbox)  # type: ignore[arg-type]
        assert await read(relay) == WHOLE
        assert (log.reads, relay.epoch) == (1, "2-b")

    async def test_refuses_the_end_of_an_attempt_whose_frames_are_not_what_was_sent(self) -> None:
        log = Log([b"f1", b"f2", b"x3", b"x4"], epoch="2-b", ended=final())
        inbox = inbox_of(released(1, *FRAMES[:4]), ended(4, epoch="2-b"))
        with pytest.raises(StreamDiverged):
            await read(Relay(queue=log, inbox=inbox))  # type: ignore[arg-type]

    async def test_refuses_a_log_that_is_shorter_than_what_was_sent(self) -> None:
        log = Log(FRAMES[:2], ended=final())
        with pytest.raises(StreamDiverged):
            await read(Relay(queue=log, inbox=inbox_of(released(1, *FRAMES[:4]), Signal.RESYNC)))

    async def test_takes_a_late_message_of_an_attempt_that_it_read_past(self) -> None:
        log = Log(FRAMES, epoch="2-b", ended=final())
        inbox = inbox_of(Signal.RESYNC)
        inbox.put(released(1, *FRAMES[:2], epoch="1-a"))
        assert await read(Relay(queue=log, inbox=inbox)) == WHOLE

    async def test_looks_at_the_log_after_three_beats_of_silence(self) -> None:
        log = Log(FRAMES, ended=final())
        assert await read(Relay(queue=log, inbox=inbox_of()), beat_seconds=0.001) == WHOLE

    async def test_reads_a_long_log_page_by_page(self) -> None:
        frames = [b"%d" % n for n in range(2000)]
        relay = Relay(queue=Log(frames, ended=final()), inbox=inbox_of())
        assert await read(relay, from_log=True) == list(enumerate(frames, start=1))

    async def test_says_so_when_the_request_is_unknown(self) -> None:
        class Empty(Log):
            async def read_log(self, *, request_id: str, after_seq: int, limit: int) -> None:
                return None

        with pytest.raises(WorkerLost):
            await read(Relay(queue=Empty([]), inbox=inbox_of()), from_log=True)

    async def test_ends_when_the_client_left_before_anything_else(self) -> None:
        inbox = inbox_of(released(1, *FRAMES), ended(6))
        inbox.interrupt()
        with pytest.raises(ClientLost):
            await read(Relay(queue=Log(FRAMES), inbox=inbox))


class TestSlowReader:
    """One whose inbox overflowed: the log is its buffer."""

    def overflown(self) -> Inbox:
        inbox = Inbox(request_id=REQUEST, bytes_max=1000)
        for seq in range(1, 20):
            inbox.put(released(seq, b"x" * 100))
        return inbox

    async def test_gets_every_frame_of_a_request_that_has_ended(self) -> None:
        frames = [b"%d" % n for n in range(1000)]
        relay = Relay(queue=Log(frames, ended=final()), inbox=self.overflown())
        assert await read(relay) == list(enumerate(frames, start=1))
        assert relay.final == final()

    async def test_has_no_more_read_for_it_than_it_takes(self) -> None:
        log = Log([b"%d" % n for n in range(1000)], ended=final())
        batches = Relay(queue=log, inbox=self.overflown()).batches(beat_seconds=5.0, from_log=False)
        first, second = await anext(batches), await anext(batches)
        assert first is not None
        assert second is not None
        assert [len(first.frames), len(second.frames)] == [SLOW_PAGE_FRAMES, SLOW_PAGE_FRAMES]
        assert log.reads == 2
        assert log.most <= SLOW_PAGE_FRAMES + COMPARED_FRAMES
        await batches.aclose()

    async def test_goes_on_with_a_request_that_still_runs(self) -> None:
        log = Log(FRAMES[:2])
        relay = Relay(queue=log, inbox=self.overflown())
        seen: list[bytes] = []
        async for batch in relay.batches(beat_seconds=0.001, from_log=False):
            if batch is not None:
                seen += batch.frames
            log.frames, log.ended = FRAMES, final()
        assert seen == FRAMES

    async def test_hears_that_its_client_is_gone(self) -> None:
        inbox = self.overflown()
        batches = Relay(queue=Log(FRAMES), inbox=inbox).batches(beat_seconds=0.001, from_log=False)
        await anext(batches)
        inbox.interrupt()
        with pytest.raises(ClientLost):
            await anext(batches)


class TestInbox:
    async def test_lets_everything_go_past_its_bytes_and_says_so(self) -> None:
        inbox = Inbox(request_id=REQUEST, bytes_max=1000)
        for seq in range(1, 100):
            inbox.put(released(seq, b"x" * 100))
        assert await inbox.get(seconds=1) is Signal.OVERFLOW

    async def test_frees_its_bytes_as_they_are_read(self) -> None:
        inbox = Inbox(request_id=REQUEST, bytes_max=1000)
        for seq in range(1, 100):
            inbox.put(released(seq, b"x" * 100))
            assert await inbox.get(seconds=1) == released(seq, b"x" * 100)

    async def test_wakes_a_waiting_reader(self) -> None:
        inbox = Inbox(request_id=REQUEST, bytes_max=1000)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(inbox.get(seconds=30))
            await asyncio.sleep(0)
            inbox.put(Signal.RESYNC)
        assert waiting.result() is Signal.RESYNC
