import pytest

from contracts.errors import InvalidRequest
from gateway.realtime.conversation import Conversation
from gateway.surface import limits


def user(text: str) -> dict[str, object]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


class TestConversation:
    def test_asks_with_its_defaults_instructions_and_items(self) -> None:
        talk = Conversation()
        talk.update({"model": "m", "instructions": "Be brief.", "temperature": 0})
        talk.add(user("Hi"))
        asked = talk.ask({"max_tokens": 5})
        assert (asked.model, asked.max_tokens, asked.sampling, asked.stream) == ("m", 5, {"temperature": 0}, True)
        assert asked.messages == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]

    def test_remembers_its_answers(self) -> None:
        talk = Conversation()
        talk.add(user("Hi"))
        talk.answered("Hello!")
        talk.add(user("More"))
        assert [message["content"] for message in talk.ask({"model": "m"}).messages] == ["Hi", "Hello!", "More"]

    def test_answers_an_input_of_its_own_without_the_conversation(self) -> None:
        talk = Conversation()
        talk.add(user("Hi"))
        assert talk.ask({"model": "m", "input": [user("Only this")]}).messages == [
            {"role": "user", "content": "Only this"}
        ]

    @pytest.mark.parametrize(
        ("response", "param"),
        [
            ({"model": "m", "tools": []}, "response.tools"),
            ({"model": "m", "n": 2}, "response.n"),
            ({"model": "m", "temperature": 9}, "temperature"),
            ({"model": "m", "modalities": ["audio"]}, "modalities"),
            ({}, "model"),
            ("now", "response"),
        ],
    )
    def test_refuses_what_it_cannot_do(self, response: object, param: str) -> None:
        talk = Conversation()
        talk.add(user("Hi"))
        with pytest.raises(InvalidRequest) as caught:
            talk.ask(response)
        assert caught.value.param == param

    def test_refuses_a_bad_session_and_keeps_the_good_one(self) -> None:
        talk = Conversation()
        talk.update({"model": "m"})
        with pytest.raises(InvalidRequest):
            talk.update({"temperature": 9})
        assert talk.defaults == {"model": "m"}

    def test_is_bounded_by_bytes_of_text(self) -> None:
        talk = Conversation()
        most = "水" * (limits.REALTIME_BYTES_MAX // 3)
        talk.add(user(most))
        with pytest.raises(InvalidRequest) as caught:
            talk.add(user("more"))
        assert (caught.value.param, caught.value.code) == ("item", "conversation_full")
        assert talk.answered("more") is False
        assert [message["content"] for message in talk.ask({"model": "m"}).messages] == [most]

    def test_is_bounded_by_items(self) -> None:
        talk = Conversation()
        for _ in range(limits.REALTIME_ITEMS_MAX):
            talk.add(user("x"))
        with pytest.raises(InvalidRequest) as caught:
            talk.add(user("x"))
        assert caught.value.code == "conversation_full"
        assert talk.answered("x") is False

    @pytest.mark.parametrize(
        "name", ["max_output_tokens", "max_response_output_tokens", "max_tokens", "max_completion_tokens"]
    )
    def test_bounds_an_answer_by_any_of_its_names(self, name: str) -> None:
        talk = Conversation()
        talk.update({"model": "m", "max_output_tokens": 7, "type": "realtime", "output_modalities": ["text"]})
        talk.add(user("Hi"))
        assert talk.ask(None).max_tokens == 7
        assert talk.ask({name: 5}).max_tokens == 5
        assert talk.ask({name: "inf"}).max_tokens is None

    @pytest.mark.parametrize(
        ("session", "param"),
        [
            ({"max_output_tokens": 0}, "session.max_output_tokens"),
            ({"max_output_tokens": "many"}, "session.max_output_tokens"),
            ({"max_output_tokens": True}, "session.max_output_tokens"),
            ({"max_output_tokens": 1, "max_tokens": 1}, "session.max_tokens"),
            ({"type": "transcription"}, "session.type"),
            ({"output_modalities": ["audio"]}, "modalities"),
            ({"input": []}, "session.input"),
        ],
    )
    def test_refuses_a_session_that_is_wrong(self, session: object, param: str) -> None:
        with pytest.raises(InvalidRequest) as caught:
            Conversation().update(session)
        assert caught.value.param == param

    def test_refuses_audio(self) -> None:
        item = {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": ""}]}
        with pytest.raises(InvalidRequest) as caught:
            Conversation().add(item)
        assert caught.value.code == "unsupported_content"

    def test_has_nothing_to_answer_at_first(self) -> None:
        with pytest.raises(InvalidRequest, match="create an item"):
            Conversation().ask({"model": "m"})
