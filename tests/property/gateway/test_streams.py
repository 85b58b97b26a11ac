"""Whatever the network and the mailbox do to a stream, a client reads the same events."""

from hypothesis import given
from hypothesis import strategies as st
from openai._streaming import SSEDecoder

from contracts.jobs import Endpoint
from fairqueue.messages import Ended, Released
from gateway.stream import assemble, sse
from gateway.stream.mailbox import Inbox, Signal
from gateway.stream.relay import Relay
from tests.unit.gateway.frames import REQUEST, content, final, frame
from tests.unit.gateway.test_relay import Log, ended, read, released

texts = st.lists(st.text(max_size=12), min_size=1, max_size=12)


def cut(data: bytes, at: list[int]) -> list[bytes]:
    places = sorted({place % (len(data) + 1) for place in at})
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


class TestFraming:
    @given(texts=texts, at=st.lists(st.integers(min_value=0), max_size=20), pings=st.lists(st.integers(0, 12)))
    def test_the_openai_sdk_reads_the_same_events_at_every_split(
        self, texts: list[str], at: list[int], pings: list[int]
    ) -> None:
        frames = [frame(content(text)) for text in texts]
        pieces = [sse.QUEUED]
        for seq, one in enumerate(frames, start=1):
            pieces += [sse.PING] * pings.count(seq)
            pieces.append(sse.events(epoch="1-n", first_seq=seq, frames=[one]))
        pieces.append(sse.DONE)
        events = list(SSEDecoder().iter_bytes(iter(cut(b"".join(pieces), at))))
        assert [event.data for event in events] == [one.decode() for one in frames] + ["[DONE]"]
        assert [event.id for event in events[:-1]] == [f"1-n-{seq}" for seq in range(1, len(frames) + 1)]

    @given(texts=texts)
    def test_a_plain_answer_is_what_a_stream_adds_up_to(self, texts: list[str]) -> None:
        frames = [frame(content(text)) for text in texts]
        answer = assemble.answer(
            frames, request_id=REQUEST, endpoint=Endpoint.CHAT, model="m", created_s=1, final=final()
        )
        assert answer["choices"][0]["message"]["content"] == "".join(texts)


class TestRelayUnderLoss:
    @given(
        cuts=st.lists(st.integers(1, 29), max_size=8),
        fates=st.lists(st.sampled_from(["deliver", "lose", "twice", "resync"]), min_size=30, max_size=30),
        lose_end=st.booleans(),
    )
    async def test_every_frame_arrives_once_and_in_order(
        self, cuts: list[int], fates: list[str], lose_end: bool
    ) -> None:
        frames = [b"frame %d" % number for number in range(1, 31)]
        places = [0, *sorted(set(cuts)), 30]
        inbox = Inbox(request_id=REQUEST, bytes_max=1_000_000)
        for start, end, fate in zip(places, places[1:], fates, strict=False):
            message: Released = released(start + 1, *frames[start:end])
            sent: dict[str, list[Released | Ended | Signal]] = {
                "deliver": [message], "lose": [], "twice": [message, message], "resync": [Signal.RESYNC, message],
            }  # fmt: skip
            for entry in sent[fate]:
                inbox.put(entry)
        inbox.put(Signal.RESYNC if lose_end else ended(30))
        relay = Relay(queue=Log(frames, ended=final()), inbox=inbox)
        assert await read(relay) == list(enumerate(frames, start=1))
