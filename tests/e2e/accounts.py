"""Sums of usage and money, from answers and from GET /v1/usage: shared by the tests that compare them."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from tests.e2e.api import Api
from tests.e2e.conftest import Platform

SETTLED_SECONDS = 40.0
LAG_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Account:
    """Sums of one tenant: from answers, or from a report."""

    requests: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    cost: Decimal


def reported(api: Api, *, since: int) -> Account:
    """GET /v1/usage, all pages, of requests admitted since then (Unix seconds)."""
    results: list[dict[str, Any]] = []
    params: dict[str, Any] = {"start_time": since, "bucket_width": "1m", "limit": 1_440}
    while True:
        response = api.get("/usage", params=params)
        assert response.status_code == 200, response.text
        page = response.json()
        results += [result for bucket in page["data"] for result in bucket["results"]]
        if not page["has_more"]:
            break
        params["page"] = page["next_page"]
    return Account(
        requests=sum(result["num_model_requests"] for result in results),
        input_tokens=sum(result["input_tokens"] for result in results),
        cached_tokens=sum(result["input_cached_tokens"] for result in results),
        output_tokens=sum(result["output_tokens"] for result in results),
        cost=sum((Decimal(result["cost"]) for result in results), Decimal(0)),
    )


def difference(after: Account, before: Account) -> Account:
    return Account(
        requests=after.requests - before.requests,
        input_tokens=after.input_tokens - before.input_tokens,
        cached_tokens=after.cached_tokens - before.cached_tokens,
        output_tokens=after.output_tokens - before.output_tokens,
        cost=after.cost - before.cost,
    )


def total(usages: list[dict[str, Any]]) -> Account:
    return Account(
        requests=len(usages),
        input_tokens=sum(usage["prompt_tokens"] for usage in usages),
        cached_tokens=sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages),
        output_tokens=sum(usage["completion_tokens"] for usage in usages),
        cost=sum((Decimal(usage["cost"]) for usage in usages), Decimal(0)),
    )


def metered(api: Api, *, since: int, before: Account, requests: int) -> Account:
    """What was added to the report, once it counts so many requests; whatever it says when the deadline is over."""
    until = time.monotonic() + SETTLED_SECONDS
    while True:
        found = difference(reported(api, since=since), before)
        if found.requests >= requests or time.monotonic() > until:
            return found
        time.sleep(0.2)


def quiet(api: Api, *, since: int) -> Account:
    """The report once nothing is added to it for two seconds: earlier requests may be on their way to ClickHouse."""
    until = time.monotonic() + SETTLED_SECONDS
    last, unchanged = reported(api, since=since), 0
    while unchanged < 4 and time.monotonic() < until:
        time.sleep(0.5)
        now = reported(api, since=since)
        last, unchanged = (now, unchanged + 1) if now == last else (now, 0)
    return last


def agreed_report(platform: Platform, tenant: str) -> dict[str, Any]:
    """`manage.py usage_report`, which compares ClickHouse with the ledger; fails when they differ beyond their lag."""
    start = datetime.fromtimestamp(platform.started_at, tz=UTC)
    period = ("--from", start.isoformat(), "--to", (start + timedelta(days=1)).isoformat())
    asked = ("usage_report", "--tenant", tenant, *period, "--format", "json")
    until = time.monotonic() + LAG_SECONDS
    while (done := platform.instance.manage(*asked, deadline=60)).returncode != 0 and time.monotonic() < until:
        time.sleep(0.5)
    assert done.returncode == 0, done.stdout
    report: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    return report
