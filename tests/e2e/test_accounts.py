"""To the last nano-unit: what the answers said, what ClickHouse counts, and what the ledger posted are one sum."""

from __future__ import annotations

import time
from decimal import Decimal
from typing import Any

from tests.e2e.accounts import agreed_report, metered, quiet, total
from tests.e2e.api import bare_id
from tests.e2e.conftest import Platform


def make_requests(platform: Platform) -> list[dict[str, Any]]:
    """Plain, streamed, two-choice, cached, cut-off and cancelled requests; the usage that each was told."""
    api, model = platform.api, platform.model
    usages: list[dict[str, Any]] = []
    long_text = f"{time.monotonic_ns()} " + "The keeper counts what passes and writes it down once. " * 40
    for number in range(4):
        messages = [{"role": "system", "content": long_text}, {"role": "user", "content": f"say: {number}"}]
        plain = api.post("/chat/completions", {"model": model, "messages": messages, "max_tokens": 5 + number})
        assert plain.status_code == 200, plain.text
        usages.append(plain.json()["usage"])
    choices = api.post("/completions", {"model": model, "prompt": "say: two", "n": 2, "max_tokens": 4})
    assert choices.status_code == 200, choices.text
    usages.append(choices.json()["usage"])
    request = {
        "model": model,
        "messages": [{"role": "user", "content": "say: streamed"}],
        "stream": True,
        "max_tokens": 32,
    }
    events = list(api.events("/chat/completions", {**request, "stream_options": {"include_usage": True}}))
    usages.append(events[-2]["usage"])
    endless = {**request, "max_tokens": 2_000, "ignore_eos": True}
    stream = api.events("/chat/completions", endless)
    request_id = bare_id(next(stream)["id"])
    next(stream)
    stream.close()
    cancelled = api.ended(request_id)
    assert cancelled["outcome"] == "cancelled"
    usages.append(cancelled["usage"])
    return usages


class TestAccounts:
    def test_agree_between_answers_and_the_report_to_the_last_nano_unit(self, each_platform: Platform) -> None:
        since = each_platform.started_at
        before = quiet(each_platform.api, since=since)
        told = total(make_requests(each_platform))
        assert told.cached_tokens > 0
        assert told.cost > 0
        assert metered(each_platform.api, since=since, before=before, requests=told.requests) == told

    def test_agree_between_clickhouse_and_the_ledger_for_everything_so_far(self, each_platform: Platform) -> None:
        """The operator's own report checks both books; it fails when they differ for longer than they lag."""
        for api in (each_platform.api, each_platform.other_api):
            answer = api.post("/completions", {"model": each_platform.model, "prompt": "say: paid", "max_tokens": 4})
            assert answer.status_code == 200, answer.text
        for api, tenant in ((each_platform.api, "Acme"), (each_platform.other_api, "Basic Bakery")):
            told = quiet(api, since=each_platform.started_at)
            report = agreed_report(each_platform, tenant)
            (check,) = report["check"]
            assert check["clickhouse"] == check["ledger"]
            assert check["clickhouse_requests"] == check["ledger_requests"] > 0
            assert sum(Decimal(line["cost"]) for line in report["lines"]) == Decimal(check["ledger"]) > 0
            assert (told.requests, told.cost) == (check["ledger_requests"], Decimal(check["ledger"]))
