"""Configurations held against vLLM's own parser, in one import of it each: what it takes, and what it does not."""

from __future__ import annotations

import pytest

from controlplane.engineconfig.document import read_document
from controlplane.engineconfig.parser import ask_parser
from tests.contract.workers.conftest import real_engine
from tests.unit.engineconfig.test_document import GPU, SMALL

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.skipif(real_engine() is None, reason="the engine's environment is not made (`make engine`)"),
]


class TestParser:
    def test_takes_the_settings_of_a_gpu(self) -> None:
        found = real_engine()
        assert found is not None
        verdict = ask_parser(read_document(GPU), python=found[0], model_dir=found[1])
        assert verdict.accepted, verdict.text
        parsed = verdict.parsed
        assert (parsed["tensor_parallel_size"], parsed["pipeline_parallel_size"]) == ("4", "2")
        assert (parsed["enable_lora"], parsed["max_loras"], parsed["enable_sleep_mode"]) == ("True", "2", "True")
        assert "ngram" in parsed["speculative_config"]

    def test_refuses_a_flag_that_it_does_not_know(self) -> None:
        found = real_engine()
        assert found is not None
        document = read_document({**SMALL, "flags": ["--unheard-of", "1"]})
        verdict = ask_parser(document, python=found[0], model_dir=found[1])
        assert not verdict.accepted
        assert "--unheard-of" in verdict.text
