import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway import tokenizer as tokenizers
from gateway.tokenizer import PromptTokenizer, TemplateRefused, TokenizerFilesError
from tests.unit.gateway.toy import BYTES, CHATML, write_model


@pytest.fixture
def tokenizer(tmp_path: Path) -> PromptTokenizer:
    return PromptTokenizer.load(write_model(tmp_path / "toy"))


class TestPromptTokenizer:
    async def test_counts_the_rendered_chat_with_its_special_tokens(self, tokenizer: PromptTokenizer) -> None:
        messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "Grüße"}]
        rendered = tokenizer.render(messages, None)
        assert rendered == (
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nGrüße<|im_end|>\n<|im_start|>assistant\n"
        )
        bare = rendered.replace("<|im_start|>", "").replace("<|im_end|>", "")
        assert await tokenizer.count_chat(messages, None) == len(bare.encode()) + 5

    async def test_counts_a_long_chat_off_the_loop_to_the_same_number(self, tokenizer: PromptTokenizer) -> None:
        one = await tokenizer.count_chat([{"role": "system", "content": "x"}], None)
        many = await tokenizer.count_chat([{"role": "system", "content": "x" * 20_001}], None)
        assert many == one + 20_000

    @pytest.mark.parametrize(
        ("of", "leaves"),
        [
            ("a short chat", False),
            ("a long text", True),
            ("many turns", True),
            ("large arguments of a call", True),
            ("large tools", True),
        ],
    )
    async def test_counts_what_takes_long_in_a_thread(
        self, tokenizer: PromptTokenizer, monkeypatch: pytest.MonkeyPatch, of: str, *, leaves: bool
    ) -> None:
        text = "x" * tokenizers.OFF_LOOP_CHARACTERS
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": text})}}
        messages, tools = {
            "a short chat": ([{"role": "user", "content": "hello"}], [{"type": "function"}]),
            "a long text": ([{"role": "user", "content": text + "x"}], None),
            "many turns": ([{"role": "user", "content": "x"}] * 300, None),
            "large arguments of a call": ([{"role": "assistant", "tool_calls": [call]}], None),
            "large tools": ([{"role": "user", "content": "x"}], [{"type": "function", "description": text}]),
        }[of]
        with ThreadPoolExecutor(max_workers=1) as threads:
            monkeypatch.setattr(tokenizers, "_THREADS", threads)
            await tokenizer.count_chat(messages, tools)
            assert bool(threads._threads) is leaves

    async def test_counts_a_text(self, tokenizer: PromptTokenizer) -> None:
        assert await tokenizer.count_text("日本") == 6

    def test_decodes_token_ids_for_the_guard(self, tokenizer: PromptTokenizer) -> None:
        ids = tokenizer.tokenizer.encode("secret 🔑").ids
        assert tokenizer.decode(ids) == "secret 🔑"

    def test_has_the_whole_vocabulary(self, tokenizer: PromptTokenizer) -> None:
        assert tokenizer.vocabulary == BYTES + 2

    def test_shows_tool_arguments_as_an_object(self, tmp_path: Path) -> None:
        template = "{{ messages[0].tool_calls[0].function.arguments.city }}{{ messages[0].content }}"
        toy = PromptTokenizer.load(write_model(tmp_path, template=template))
        call = {"id": "1", "type": "function", "function": {"name": "w", "arguments": '{"city": "Oslo"}'}}
        assert toy.render([{"role": "assistant", "tool_calls": [call]}], None) == "Oslo"

    def test_keeps_parts_for_a_template_that_walks_through_them(self, tmp_path: Path) -> None:
        walks = "{% for m in messages %}{% for part in m['content'] %}{{ part.text }}{% endfor %}{% endfor %}"
        assert not PromptTokenizer.load(write_model(tmp_path / "a", template=walks)).parts_as_text
        assert PromptTokenizer.load(write_model(tmp_path / "b", template=CHATML)).parts_as_text

    @pytest.mark.parametrize(
        "template",
        [
            "{% for m in messages %}{% for p in m.content | list %}{{ p }}{% endfor %}{% endfor %}",
            "{% for m in messages %}{% set content = m.content %}{% for p in content %}{{ p }}{% endfor %}{% endfor %}",
            "{% macro show(x) %}{% for p in x %}{{ p }}{% endfor %}{% endmacro %}{{ show(messages[0].content) }}",
            "{% macro show(x) %}{% for p in x %}{{ p }}{% endfor %}{% endmacro %}{{ show(x=messages[0]['content']) }}",
        ],
    )
    def test_sees_a_walk_through_filters_names_and_macros(self, tmp_path: Path, template: str) -> None:
        assert not PromptTokenizer.load(write_model(tmp_path, template=template)).parts_as_text

    def test_shows_developer_messages_as_one_system_message_at_the_front(self, tokenizer: PromptTokenizer) -> None:
        alone = tokenizer.render([{"role": "developer", "content": "D"}, {"role": "user", "content": "u"}], None)
        late = [
            {"role": "system", "content": "S"},
            {"role": "user", "content": "u"},
            {"role": "developer", "content": "D"},
        ]
        assert alone.startswith("<|im_start|>system\nD<|im_end|>\n<|im_start|>user\nu")
        assert tokenizer.render(late, None).startswith("<|im_start|>system\nS\n\nD<|im_end|>\n<|im_start|>user\nu")

    def test_leaves_developer_to_a_template_that_knows_it(self, tmp_path: Path) -> None:
        template = "{{ messages[0].role }}{# 'developer' #}"
        toy = PromptTokenizer.load(write_model(tmp_path, template=template))
        assert toy.render([{"role": "developer", "content": "D"}], None) == "developer"

    def test_hands_the_reasoning_effort_to_the_template(self, tmp_path: Path) -> None:
        toy = PromptTokenizer.load(write_model(tmp_path, template="{{ reasoning_effort }} {{ enable_thinking }}"))
        assert toy.render([], None, reasoning_effort="low") == "low True"
        assert toy.render([], None, reasoning_effort="none") == "none False"
        assert toy.render([], None) == " "

    @pytest.mark.parametrize(
        "template",
        [
            "{{ raise_exception('roles must alternate') }}",
            "{{ messages.append(1) }}",
            "{{ ''.__class__.__mro__[1].__subclasses__() }}",
            "{{ messages[0].content + 1 }}",
        ],
    )
    def test_refuses_what_the_template_refuses_and_what_the_sandbox_forbids(
        self, tmp_path: Path, template: str
    ) -> None:
        toy = PromptTokenizer.load(write_model(tmp_path, template=template))
        with pytest.raises(TemplateRefused):
            toy.render([{"role": "user", "content": "x"}], None)

    def test_refuses_chats_without_a_template(self, tmp_path: Path) -> None:
        toy = PromptTokenizer.load(write_model(tmp_path, template=None))
        with pytest.raises(TemplateRefused, match="no chat template"):
            toy.render([{"role": "user", "content": "x"}], None)

    def test_says_which_file_is_missing(self, tmp_path: Path) -> None:
        with pytest.raises(TokenizerFilesError, match=r"tokenizer\.json"):
            PromptTokenizer.load(tmp_path)
