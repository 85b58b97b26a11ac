"""T19, SSRF by a webhook: a table of hostile URLs and addresses, and a property over all addresses."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.webhooks.destination import Refused, Rules, check, networks, parse

RULES = Rules()
DEV = Rules(loopback=True)

HOSTILE_URLS = [
    "",
    "hooks.example.com",
    "//hooks.example.com/x",
    "http://hooks.example.com/",
    "ftp://hooks.example.com/",
    "file:///etc/passwd",
    "gopher://hooks.example.com/",
    "javascript:alert(1)",
    "https:hooks.example.com",
    "https:/hooks.example.com",
    "https:///hooks.example.com",
    "https://",
    "https:///",
    "https://:443/",
    "https://hooks.example.com:/",
    "https://hooks.example.com:0/",
    "https://hooks.example.com:22/",
    "https://hooks.example.com:80/",
    "https://hooks.example.com:6379/",
    "https://hooks.example.com:65536/",
    "https://hooks.example.com:-1/",
    "https://hooks.example.com:4 43/",
    "https://user@hooks.example.com/",
    "https://user:pw@hooks.example.com/",
    "https://hooks.example.com@127.0.0.1/",
    "https://hooks.example.com:443@127.0.0.1/",
    "https://127.0.0.1\\@hooks.example.com/",
    "https://hooks.example.com\\.evil.test/",
    "https://hooks.example.com#@evil.test/",
    "https://hooks.example.com/#fragment",
    "https://hooks.example.com./",
    "https://hooks..example.com/",
    "https://.example.com/",
    "https://-a.example.com/",
    "https://a_b.example.com/",
    "https://%31%32%37.0.0.1/",
    "https://hooks%2eexample.com/",
    "https://127.0.0.1/",
    "https://127.1/",
    "https://127.0.1/",
    "https://2130706433/",
    "https://0x7f000001/",
    "https://0x7f.0.0.1/",
    "https://0177.0.0.1/",
    "https://017700000001/",
    "https://127.0.0.1.0x0/",
    "https://0/",
    "https://8.8.8.8/",
    "https://169.254.169.254/latest/meta-data/",
    "https://[::1]/",
    "https://[::]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[::ffff:7f00:1]/",
    "https://[fe80::1%25eth0]/",
    "https://[2606:4700::1]/",
    "https://[::1/",
    "https://[hooks.example.com]/",
    "https://localhost/",
    "https://localhost.localdomain/x y",
    "https://app.localhost/",
    "https://printer.local/",
    "https://db.internal/",
    "https://metadata.google.internal/",
    "https://router.home.arpa/",
    "https://1.0.0.127.in-addr.arpa/",
    "https://x.onion/",
    "https://intranet/",
    "https://hооks.example.com/",  # noqa: RUF001 - a Cyrillic letter
    "https://例え.テスト/",
    "https://①②⑦.0.0.1/",
    "https://hooks。example。com/",
    "https://hooks.example.com/ü",
    "https://hooks.example.com/a b",
    "https://hooks.example.com/\r\nX-Evil: 1",
    "https://hooks.example.com/\t",
    " https://hooks.example.com/",
    "https://hooks.example.com/\x00",
    "https://hooks.example.com\x0b/",
    "https://hooks.example.com/" + "a" * 2048,
    "https://" + "a" * 64 + ".example.com/",
    "https://" + ".".join(["abcdefgh"] * 30) + ".com/",
]

HOSTILE_ADDRESSES = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.169.254",
    "169.254.170.2",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.8",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "224.0.1.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::8.8.8.8",
    "::ffff:127.0.0.1",
    "::ffff:8.8.8.8",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b::a00:1",
    "64:ff9b:1::808:808",
    "100::1",
    "2001::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:2::1",
    "2001:10::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:808:808::",
    "3fff::1",
    "4000::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "2606:4700::1%eth0",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
    "not an address",
    "",
    "127.1",
    "0x7f000001",
]


class TestT19Url:
    @pytest.mark.parametrize("url", HOSTILE_URLS)
    def test_t19_refuses(self, url: str) -> None:
        for rules in (RULES, DEV):
            if rules is DEV and url in ("https://127.0.0.1/", "https://[::1]/", "https://localhost/"):
                continue
            with pytest.raises(Refused):
                parse(url, rules=rules)

    @pytest.mark.parametrize(
        ("given_url", "kept", "origin"),
        [
            ("https://hooks.example.com", "https://hooks.example.com/", "https://hooks.example.com"),
            ("HTTPS://Hooks.Example.COM:443/A?b=c", "https://hooks.example.com/A?b=c", "https://hooks.example.com"),
            ("https://hooks.example.com:8443/a", "https://hooks.example.com:8443/a", "https://hooks.example.com:8443"),
            ("https://xn--mnchen-3ya.example/%C3%BC", "https://xn--mnchen-3ya.example/%C3%BC", None),
            ("https://hooks.example.com/?u=user@x", "https://hooks.example.com/?u=user@x", None),
        ],
    )
    def test_keeps_one_spelling(self, given_url: str, kept: str, origin: str | None) -> None:
        found = parse(given_url, rules=RULES)
        assert found.url == kept
        assert parse(found.url, rules=RULES) == found
        if origin is not None:
            assert found.origin == origin

    @pytest.mark.parametrize("url", ["http://127.0.0.1:9000/x", "http://localhost:9000/x", "http://[::1]:9000/x"])
    def test_takes_this_machine_in_development_only(self, url: str) -> None:
        found = parse(url, rules=DEV)
        assert (found.local, found.port, found.url) == (True, 9000, url)
        with pytest.raises(Refused):
            parse(url, rules=RULES)

    @given(st.text(max_size=60))
    def test_answers_any_text_with_a_reason_or_one_spelling(self, text: str) -> None:
        try:
            found = parse("https://" + text, rules=DEV)
        except Refused:
            return
        assert parse(found.url, rules=DEV) == found
        assert found.url.isascii()


class TestT19Address:
    @pytest.mark.parametrize("address", HOSTILE_ADDRESSES)
    def test_t19_refuses(self, address: str) -> None:
        for rules in (RULES, DEV):
            with pytest.raises(Refused, match=r"^The host has no public address\.$"):
                check(address, local=False, rules=rules)

    @pytest.mark.parametrize("address", ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "64:ff9b::808:808"])
    def test_takes_public_ones(self, address: str) -> None:
        assert check(address, local=False, rules=RULES) == ipaddress.ip_address(address)

    @pytest.mark.parametrize("address", ["8.8.8.8", "10.0.0.1", "169.254.169.254", "::"])
    def test_a_local_name_leads_to_loopback_only(self, address: str) -> None:
        with pytest.raises(Refused):
            check(address, local=True, rules=DEV)
        assert str(check("127.0.0.1", local=True, rules=DEV)) == "127.0.0.1"

    def test_an_operator_opens_and_closes_networks(self) -> None:
        rules = Rules(allow=networks("10.1.0.0/16"), deny=networks("10.1.9.0/24, 8.8.8.0/24"))
        assert str(check("10.1.2.3", local=False, rules=rules)) == "10.1.2.3"
        for address in ("10.2.0.1", "10.1.9.1", "8.8.8.8", "64:ff9b::808:808"):
            with pytest.raises(Refused):
                check(address, local=False, rules=rules)

    @given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)))
    def test_takes_nothing_that_python_knows_to_be_special(
        self, ip: ipaddress.IPv4Address | ipaddress.IPv6Address
    ) -> None:
        try:
            check(str(ip), local=False, rules=RULES)
        except Refused:
            return
        special = [ip.is_private, ip.is_loopback, ip.is_link_local, ip.is_multicast, ip.is_unspecified, ip.is_reserved]
        inner = isinstance(ip, ipaddress.IPv6Address) and ip in ipaddress.ip_network("64:ff9b::/96")
        assert inner or not any(special)
        if isinstance(ip, ipaddress.IPv6Address):
            assert ip.ipv4_mapped is None
            assert ip.sixtofour is None
            assert ip.teredo is None
