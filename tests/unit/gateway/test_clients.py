"""Whose address counts, and where a key may be used from."""

from dataclasses import replace
from typing import Any

import pytest

from contracts.errors import PermissionDenied
from gateway.clients import client_address, require_network
from tests.functional.gateway.cast import CONTEXT

PROXIES = ("10.0.0.0/8", "fd00::/8")


def scope(peer: str | None, *forwarded: str) -> dict[str, Any]:
    headers = [(b"X-Forwarded-For", text.encode("latin-1")) for text in forwarded]
    return {"client": None if peer is None else (peer, 1), "headers": headers}


class TestClientAddress:
    @pytest.mark.parametrize(
        ("peer", "forwarded", "found"),
        [
            ("203.0.113.9", ["198.51.100.1"], "203.0.113.9"),  # a stranger writes what it likes
            ("10.1.1.1", ["198.51.100.1"], "198.51.100.1"),
            ("10.1.1.1", ["1.1.1.1, 198.51.100.1, 10.2.2.2"], "198.51.100.1"),  # what the client wrote stands before
            ("10.1.1.1", ["1.1.1.1", "198.51.100.1"], "198.51.100.1"),
            ("10.1.1.1", ["1.1.1.1, junk, 10.2.2.2"], "10.2.2.2"),
            ("10.1.1.1", [], "10.1.1.1"),
            ("10.1.1.1", ["10.3.3.3"], "10.3.3.3"),
            ("fd00::1", ["2001:db8::5"], "2001:db8::5"),
            ("::ffff:10.1.1.1", ["::ffff:198.51.100.1"], "198.51.100.1"),
            (None, ["198.51.100.1"], ""),
            ("10.1.1.1", [", ".join(["9.9.9.9"] + ["10.0.0.1"] * 40)], "10.0.0.1"),
        ],
    )
    def test_trusts_only_what_our_proxies_say(self, peer: str | None, forwarded: list[str], found: str) -> None:
        assert client_address(scope(peer, *forwarded), trusted=PROXIES) == found

    def test_trusts_no_header_by_default(self) -> None:
        assert client_address(scope("10.1.1.1", "198.51.100.1"), trusted=()) == "10.1.1.1"


class TestRequireNetwork:
    bound = replace(CONTEXT, allowed_networks=("198.51.100.0/24", "2001:db8::/32"))

    @pytest.mark.parametrize("address", ["198.51.100.7", "::ffff:198.51.100.7", "2001:db8:1::1"])
    def test_lets_its_networks_in(self, address: str) -> None:
        require_network(self.bound, address=address)

    @pytest.mark.parametrize("address", ["198.51.101.7", "2001:db9::1", "", "junk"])
    def test_refuses_every_other_and_the_unknown(self, address: str) -> None:
        with pytest.raises(PermissionDenied) as caught:
            require_network(self.bound, address=address)
        assert caught.value.code == "network_not_allowed"

    def test_a_key_without_networks_is_free(self) -> None:
        require_network(CONTEXT, address="")
