"""The whole suite against this platform, over its public API alone: nothing may be wrong."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence

import pytest

from infra.conformance.case import Case, Result, Verdict
from infra.conformance.catalogue import chosen_cases
from infra.conformance.runner import run_cases
from infra.conformance.target import Target, parse_base_url
from tests.e2e.conftest import Platform

SKIPPED_MAX = 40


def target_of(platform: Platform) -> Target:
    demo = platform.demo
    return parse_base_url(
        platform.base_url, key=str(demo["api_key"]), other_key=str(demo["other_api_key"]), model=platform.model
    )


def run(platform: Platform, cases: Sequence[Case]) -> list[Result]:
    return asyncio.run(run_cases(cases, target_of(platform), advance=lambda _: None))


def wrong_of(results: list[Result]) -> list[str]:
    return [f"{result.case.title}: {result.seen}" for result in results if result.verdict is Verdict.WRONG]


class TestConformance:
    def test_has_no_case_wrong(self, platform: Platform) -> None:
        results = run(platform, chosen_cases(()))
        wrong = wrong_of(results)
        assert wrong == [], f"{len(wrong)} of {len(results)} cases are wrong"
        verdicts = Counter(result.verdict for result in results)
        assert verdicts[Verdict.SKIPPED] <= SKIPPED_MAX, verdicts

    @pytest.mark.engine
    def test_has_no_convention_wrong_with_a_real_engine(self, real_platform: Platform) -> None:
        """But what never reaches an engine: an explicit null is the default, and no engine is told of it."""
        cases = chosen_cases(("openai", "engine", "ranges", "alive"))
        told = [case for case in cases if not case.name.endswith("= null")]
        assert len(told) > 600
        assert wrong_of(run(real_platform, told)) == []


class TestTheCommand:
    def test_prints_one_object_for_each_case_and_ends_with_zero(self, platform: Platform) -> None:
        demo = platform.demo
        where = ("--base-url", platform.base_url, "--key", str(demo["api_key"]))
        done = platform.instance.manage("conformance", *where, "--only", "alive", "--json", deadline=120.0)
        assert done.returncode == 0, done.stdout
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert [line["verdict"] for line in lines] == ["ok", "ok", "ok"]
        assert {line["kind"] for line in lines} == {"alive"}

    def test_ends_with_one_where_a_case_is_wrong(self, platform: Platform) -> None:
        where = ("--base-url", platform.base_url, "--key", "weir_none", "--model", platform.model)
        done = platform.instance.manage("conformance", *where, "--only", "alive", deadline=120.0)
        assert done.returncode == 1, done.stdout
        assert "3 of 3 cases are wrong" in done.stdout

    def test_ends_with_two_where_nothing_can_be_run(self, platform: Platform) -> None:
        where = ("--base-url", platform.base_url, "--key", str(platform.demo["api_key"]))
        done = platform.instance.manage("conformance", *where, "--only", "no-such-kind", deadline=120.0)
        assert done.returncode == 2, done.stdout
        assert "no group or kind 'no-such-kind'" in done.stdout

    def test_ends_with_two_where_no_server_can_be_reached(self, platform: Platform) -> None:
        where = ("--base-url", "http://127.0.0.1:9/v1", "--key", "weir_none")
        for model in ((), ("--model", platform.model)):
            done = platform.instance.manage("conformance", *where, *model, "--only", "alive", deadline=120.0)
            assert done.returncode == 2, done.stdout
            assert "127.0.0.1:9" in done.stdout
            assert "wrong" not in done.stdout
