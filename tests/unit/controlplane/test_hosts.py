"""Whom the machine answers as where no hosts are named."""

import socket

import pytest
from django.http.request import validate_host

from controlplane.hosts import own_hosts


class TestOwnHosts:
    @pytest.mark.parametrize("host", ["localhost", "a.localhost", "127.0.0.1", "[::1]", "192.0.2.7", "[2001:db8::7]"])
    def test_are_loopback_and_where_it_listens(self, host: str) -> None:
        allowed = [*own_hosts(listens_on="192.0.2.7"), *own_hosts(listens_on="2001:db8::7")]
        assert validate_host(host, allowed)

    def test_are_the_machine_s_name_and_addresses(self) -> None:
        allowed = own_hosts(listens_on="")
        assert validate_host(socket.gethostname().lower(), allowed)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("127.0.0.2", 9))
            assert validate_host(probe.getsockname()[0], allowed)

    @pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "8.8.8.8"])
    def test_are_nobody_else_s(self, host: str) -> None:
        for listens_on in ("", "*", "0.0.0.0"):
            assert not validate_host(host, own_hosts(listens_on=listens_on))
