"""What an operator may change by the environment."""

from ipaddress import ip_network

import pytest
from pydantic import ValidationError
from pytest_django import Settings

from controlplane.env import Environment
from tenants.webhooks import config


class TestRules:
    def test_are_closed_unless_opened(self, settings: Settings) -> None:
        settings.ENV = Environment()
        found = config.rules()
        assert (found.loopback, found.ports, found.allow, found.deny) == (False, {443, 8443}, (), ())

    def test_come_from_the_environment(self, settings: Settings) -> None:
        settings.ENV = Environment(
            WEIR_WEBHOOKS_ALLOW="10.1.0.0/16, fd00::/8",
            WEIR_WEBHOOKS_DENY="8.8.8.0/24",
            WEIR_WEBHOOKS_PORTS="443,9443",
            WEIR_WEBHOOKS_LOOPBACK=True,
        )
        found = config.rules()
        assert found.allow == (ip_network("10.1.0.0/16"), ip_network("fd00::/8"))
        assert found.deny == (ip_network("8.8.8.0/24"),)
        assert (found.ports, found.loopback) == ({443, 9443}, True)

    def test_production_never_sends_to_itself(self, settings: Settings) -> None:
        settings.ENV = Environment(WEIR_WEBHOOKS_LOOPBACK=True, WEIR_PRODUCTION=True)
        assert not config.rules().loopback

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("WEIR_WEBHOOKS_ALLOW", "10.1.0.1/16"),
            ("WEIR_WEBHOOKS_DENY", "inside"),
            ("WEIR_WEBHOOKS_PORTS", "https"),
            ("WEIR_WEBHOOKS_PORTS", "443,0"),
            ("WEIR_WEBHOOKS_PORTS", ""),
        ],
    )
    def test_that_cannot_be_read_stop_the_process(self, name: str, value: str) -> None:
        with pytest.raises(ValidationError):
            Environment(**{name: value})
