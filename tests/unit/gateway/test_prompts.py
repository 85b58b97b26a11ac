from typing import Any

from contracts.jobs import Endpoint
from gateway.drafts import content_of
from gateway.prompts import PromptContent
from gateway.surface.schema import check_request
from gateway.tokenizer import PromptTokenizer
from tests.unit.gateway.toy import write_model


def content(**fields: Any) -> PromptContent:
    return PromptContent(**({"messages": [], "tools": [], "text": "", "token_ids": []} | fields))


class TestPromptContent:
    def test_shows_the_guard_every_text_of_a_chat(self) -> None:
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":"secret"}'}}
        parameters = {"type": "object", "properties": {"q": {"type": "string", "description": "why"}}, "enum": ["e"]}
        chat = content(
            messages=[
                {"role": "system", "content": "sys", "name": "me"},
                {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
                {"role": "assistant", "reasoning": "think", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": "result"},
            ],
            tools=[{"type": "function", "function": {"name": "g", "description": "does", "parameters": parameters}}],
        )
        assert chat.texts() == (
            "sys", "me", "one", "two", "think", "f", '{"a":"secret"}', "result", "g", "does", "why", "q", "e",
        )  # fmt: skip

    def test_shows_the_guard_what_a_schema_calls_its_properties_and_renames_them(self) -> None:
        schema = {
            "type": "object",
            "properties": {"secret_name": {"type": "string"}, "type": {"const": {"inner_name": {"id": "of data"}}}},
            "required": ["secret_name"],
            "x-own": True,
        }
        before = content(tools=[{"type": "function", "function": {"name": "f", "parameters": schema}}])
        texts = before.texts()
        assert texts == ("f", "of data", "id", "inner_name", "secret_name", "type", "secret_name", "x-own")
        after = before.with_texts([text.replace("secret", "[x]") for text in texts])
        redacted = after.tools[0]["function"]["parameters"]
        assert list(redacted["properties"]) == ["[x]_name", "type"]
        assert redacted["required"] == ["[x]_name"]
        assert before.with_texts(texts).tools == before.tools

    def test_puts_redacted_texts_back_and_leaves_the_first_alone(self) -> None:
        before = content(messages=[{"role": "user", "content": "my key is K"}, {"role": "user", "content": "ok"}])
        after = before.with_texts(("my key is [x]", "ok"))
        assert [message["content"] for message in after.messages] == ["my key is [x]", "ok"]
        assert before.messages[0]["content"] == "my key is K"

    def test_reads_token_ids_as_text_and_sends_text_after_a_redaction(self, tmp_path: Any) -> None:
        tokenizer = PromptTokenizer.load(write_model(tmp_path))
        ids = tokenizer.tokenizer.encode("card 4242").ids
        asked = check_request({"model": "m", "prompt": ids}, endpoint=Endpoint.COMPLETIONS)
        prompt = content_of(asked, tokenizer)
        assert (prompt.texts(), prompt.token_ids) == (("card 4242",), ids)
        assert prompt.with_texts(("card [x]",)) == content(text="card [x]")

    def test_flattens_parts_as_the_engine_does(self, tmp_path: Any) -> None:
        tokenizer = PromptTokenizer.load(write_model(tmp_path))
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        asked = check_request({"model": "m", "messages": [{"role": "user", "content": parts}]}, endpoint=Endpoint.CHAT)
        assert content_of(asked, tokenizer).messages == [{"role": "user", "content": "a\nb"}]
