"""The tenant's half of docs/limits.md; that the file is up to date is asked in tests/architecture."""

from contracts.tenancy import Metric
from tenants.limits.stated import render_tenant_limits


class TestDocument:
    def test_names_every_metric_with_its_window(self) -> None:
        text = render_tenant_limits()
        assert all(f"| `{metric.value}` |" in text for metric in Metric)
