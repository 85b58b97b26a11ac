import pytest

from contracts.errors import InvalidRequest, PromptBlocked
from gateway.realtime.conversation import Conversation
from gateway.realtime.places import move
from gateway.surface import limits


def user(text: str) -> dict[str, object]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


class TestConversation:
    def test_asks_with_its_defaults_instructions_and_items(self) -> None:
        talk = Conversation()
        talk.update({"model": "m", "instructions": "Be brief.", "temperature": 0})
        talk.add(user("Hi"))
        asked, _ = talk.ask({"max_tokens": 5})
        assert (asked.model, asked.max_tokens, asked.sampling, asked.stream) == ("m", 5, {"temperature": 0}, True)
        assert asked.messages == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]

    def test_remembers_its_answers(self) -> None:
        talk = Conversation()
        talk.add(user("Hi"))
        talk.answered("Hello!")
        talk.add(user("More"))
        assert [message["content"] for message in talk.ask({"model": "m"})[0].messages] == ["Hi", "Hello!", "More"]

    def test_answers_an_input_of_its_own_without_the_conversation(self) -> None:
        talk = Conversation()
        talk.add(user("Hi"))
        asked, _ = talk.ask({"model": "m", "input": [user("Only this")]})
        assert asked.messages == [{"role": "user", "content": "Only this"}]

    @pytest.mark.parametrize(
        ("response", "param"),
        [
            ({"model": "m", "tools": []}, "response.tools"),
            ({"model": "m", "n": 2}, "response.n"),
            ({"model": "m", "temperature": 9}, "response.temperature"),
            ({"model": "m", "foo": 1}, "response.foo"),
            ({"model": "m", "stop": ["a", 5]}, "response.stop[1]"),
            ({"model": "m", "response_format": {"type": "xml"}}, "response.response_format.type"),
            ({"model": "m", "modalities": ["audio"]}, "response.modalities"),
            ({"model": "m", "output_modalities": ["audio"]}, "response.output_modalities"),
            ({"model": "m", "output_modalities": ["text"], "modalities": ["text"]}, "response.output_modalities"),
            ({"model": "m", "max_output_tokens": 5, "min_tokens": 6}, "response.min_tokens"),
            ({"model": "m", "input": []}, "response.input"),
            ({"model": "m", "input": [user("x"), {"role": "robot"}]}, "response.input[1].role"),
            ({}, "response.model"),
            ("now", "response"),
        ],
    )
    def test_refuses_what_it_cannot_do(self, response: object, param: str) -> None:
        talk = Conversation()
        talk.add(user("Hi"))
        with pytest.raises(InvalidRequest) as caught:
            talk.ask(response)
        assert caught.value.param == param
        assert caught.value.message.startswith(f"{param}: ")

    def test_tells_what_the_client_called_a_field(self) -> None:
        talk = Conversation()
        talk.add(user("Hi"))
        _, names = talk.ask({"model": "m", "max_output_tokens": 5})
        error = InvalidRequest("max_tokens: at most 3 here", param="max_tokens")
        move(error, place="response", names=names)
        assert (error.param, error.message) == (
            "response.max_output_tokens",
            "response.max_output_tokens: at most 3 here",
        )

    def test_leaves_a_refusal_of_no_field_as_it_is(self) -> None:
        error = PromptBlocked("the prompt was refused")
        move(error, place="response")
        assert (error.param, error.message) == (None, "the prompt was refused")

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
        assert [message["content"] for message in talk.ask({"model": "m"})[0].messages] == [most]

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
        assert talk.ask(None)[0].max_tokens == 7
        assert talk.ask({name: 5})[0].max_tokens == 5
        assert talk.ask({name: "inf"})[0].max_tokens is None

    @pytest.mark.parametrize(
        ("session", "param"),
        [
            ({"max_output_tokens": 0}, "session.max_output_tokens"),
            ({"max_output_tokens": "many"}, "session.max_output_tokens"),
            ({"max_output_tokens": True}, "session.max_output_tokens"),
            ({"max_output_tokens": 1, "max_tokens": 1}, "session.max_tokens"),
            ({"type": "transcription"}, "session.type"),
            ({"output_modalities": ["audio"]}, "session.output_modalities"),
            ({"modalities": ["audio"]}, "session.modalities"),
            ({"foo": 1}, "session.foo"),
            ({"temperature": "hot"}, "session.temperature"),
            ({"logit_bias": {"a": 1}}, "session.logit_bias.a"),
            ({"input": []}, "session.input"),
        ],
    )
    def test_refuses_a_session_that_is_wrong(self, session: object, param: str) -> None:
        with pytest.raises(InvalidRequest) as caught:
            Conversation().update(session)
        assert caught.value.param == param
        assert caught.value.message.startswith(f"{param}: ")

    @pytest.mark.parametrize(
        ("item", "param", "code"),
        [
            ({"type": "message", "content": "x"}, "item.role", "missing_field"),
            ({"role": "user"}, "item.content", "missing_field"),
            ({"role": "user", "content": 5}, "item.content", "invalid_type"),
            ({"role": "user", "content": [{"text": "x"}]}, "item.content[0].type", "missing_field"),
            ({"role": "user", "content": [{"type": "input_text"}]}, "item.content[0].text", "missing_field"),
            ({"type": "call", "role": "user", "content": "x"}, "item.type", "invalid_value"),
            ({"role": "user", "content": "x", "foo": 1}, "item.foo", "unknown_parameter"),
        ],
    )
    def test_refuses_an_item_that_is_wrong(self, item: object, param: str, code: str) -> None:
        with pytest.raises(InvalidRequest) as caught:
            Conversation().add(item)
        assert (caught.value.param, caught.value.code) == (param, code)

    def test_refuses_audio(self) -> None:
        item = {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": ""}]}
        with pytest.raises(InvalidRequest) as caught:
            Conversation().add(item)
        assert caught.value.code == "unsupported_content"

    def test_has_nothing_to_answer_at_first(self) -> None:
        with pytest.raises(InvalidRequest, match="create an item"):
            Conversation().ask({"model": "m"})
