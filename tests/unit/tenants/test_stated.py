"""The tenant's half of docs/limits.md; that the file is up to date is asked in tests/architecture."""

from contracts.errors import BudgetSpent, LimitExceeded, QueueFull
from contracts.tenancy import Metric
from tenants.limits.stated import render_tenant_limits


class TestDocument:
    def test_names_every_metric_with_its_window(self) -> None:
        text = render_tenant_limits()
        assert all(f"| `{metric.value}` |" in text for metric in Metric)

    def test_says_when_a_refusal_is_402_when_429_and_when_400(self) -> None:
        rows = [
            line.split("|")[1:3]
            for line in render_tenant_limits().split("\n")
            if line.startswith(("| 402", "| 429", "| 400"))
        ]
        assert [(int(status), code.strip(" `")) for status, code in rows] == [
            (402, BudgetSpent("").code),
            (429, LimitExceeded("").code),
            (429, LimitExceeded("").code),
            (429, QueueFull("").code),
            (400, "max_tokens_cap"),
        ]
