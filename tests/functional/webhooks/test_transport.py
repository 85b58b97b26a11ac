"""T19 and T20 over real sockets: TLS by the host's name, the checked address, no redirects, bounded answers."""

import socket
import ssl
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tenants.webhooks.destination import Rules, networks
from tenants.webhooks.transport import BODY_BYTES_MAX, Answer, Sender, system_resolver
from tests.functional.webhooks.receivers import certificates, receiver, status

HOST = "hooks.example.com"
HERE = networks("127.0.0.0/8")


class Names:
    """A resolver that answers what it is told, one answer after another, and counts."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        return self._answers[min(len(self.asked), len(self._answers)) - 1]


@pytest.fixture
def tls(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    return certificates(tmp_path, host=HOST)


def sender(port: int, names: Names, trust: ssl.SSLContext | None = None, seconds: float = 10.0) -> Sender:
    """A sender that may reach this machine: its own networks are opened as an operator would."""
    rules = Rules(ports=frozenset({port}), allow=HERE)
    return Sender(rules=rules, resolver=names, trust=trust, attempt_seconds=seconds)


async def post(via: Sender, port: int, path: str = "/in?a=b") -> Answer:
    return await via.send(url=f"https://{HOST}:{port}{path}", headers={"webhook-id": "7"}, body=b'{"a":1}')


class TestDelivery:
    async def test_arrives_whole_under_the_hosts_own_name(self, tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
        server, trust = tls
        names = Names(["127.0.0.1"])
        with receiver(status(204, b""), tls=server) as there:
            answer = await post(sender(there.port, names, trust), there.port)
        assert (answer.status, answer.error, answer.accepted) == (204, "", True)
        [(headers, body)] = there.arrived
        assert body == b'{"a":1}'
        assert there.paths == ["/in?a=b"]
        assert headers["host"] == f"{HOST}:{there.port}"
        assert headers["webhook-id"] == "7"
        assert headers["accept-encoding"] == "identity"
        assert names.asked == [(HOST, there.port)]

    async def test_refuses_a_certificate_of_another_name_or_maker(
        self, tls: tuple[ssl.SSLContext, ssl.SSLContext], tmp_path: Path
    ) -> None:
        _, trust = tls
        (tmp_path / "other").mkdir()
        wrong_name, its_trust = certificates(tmp_path / "other", host="evil.example.com")
        for client in (its_trust, trust):
            with receiver(status(200), tls=wrong_name) as there:
                answer = await post(sender(there.port, Names(["127.0.0.1"]), client), there.port)
            assert answer.error.startswith("The certificate is not valid for this host")
            assert there.arrived == []

    async def test_the_names_certificate_is_not_taken_for_its_address(
        self, tls: tuple[ssl.SSLContext, ssl.SSLContext], tmp_path: Path
    ) -> None:
        (tmp_path / "address").mkdir()
        by_address, its_trust = certificates(tmp_path / "address", host="127.0.0.1")
        with receiver(status(200), tls=by_address) as there:
            answer = await post(sender(there.port, Names(["127.0.0.1"]), its_trust), there.port)
        assert answer.error.startswith("The certificate is not valid for this host")

    async def test_speaks_to_a_plain_server_of_this_machine_in_development_only(self) -> None:
        with receiver(status(200)) as there:
            url = f"http://127.0.0.1:{there.port}/x"
            allowed = await Sender(rules=Rules(loopback=True)).send(url=url, headers={}, body=b"1")
            refused = await Sender(rules=Rules()).send(url=url, headers={}, body=b"2")
        assert (allowed.status, refused.status) == (200, None)
        assert [body for _, body in there.arrived] == [b"1"]


class TestT19AddressIsPinned:
    async def test_t19_a_name_that_is_rebound_after_the_check_changes_nothing(
        self, tls: tuple[ssl.SSLContext, ssl.SSLContext]
    ) -> None:
        """The classic rebinding: harmless when checked, inside when connected. There is one look-up, so no second."""
        server, trust = tls
        names = Names(["127.0.0.1"], ["127.0.0.2"])
        with receiver(status(200), tls=server) as there:
            answer = await post(sender(there.port, names, trust), there.port)
            assert answer.accepted
            assert len(names.asked) == 1
            # The next try looks up again and is judged anew: 127.0.0.2 is now outside of what is open.
            narrow = Rules(ports=frozenset({there.port}), allow=networks("127.0.0.1/32"))
            again = await post(Sender(rules=narrow, resolver=names, trust=trust), there.port)
        assert again.error == "The host has no public address."
        assert len(there.arrived) == 1

    async def test_one_address_inside_condemns_all(self, tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
        server, trust = tls
        with receiver(status(200), tls=server) as there:
            for found in (["127.0.0.1", "10.0.0.1"], ["127.0.0.1", "169.254.169.254"], ["::1", "127.0.0.1"], []):
                answer = await post(sender(there.port, Names(found), trust), there.port)
                assert answer.error == "The host has no public address."
        assert there.arrived == []

    async def test_goes_on_to_the_next_checked_address(self, tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
        server, trust = tls
        with receiver(status(200), tls=server) as there:
            answer = await post(sender(there.port, Names(["127.0.0.9", "127.0.0.1"]), trust), there.port)
        assert answer.accepted

    async def test_no_name_of_this_machine_is_reached_by_the_systems_resolver(self) -> None:
        assert "127.0.0.1" in await system_resolver("localhost", 443)
        answer = await Sender(rules=Rules()).send(url="https://localhost/", headers={}, body=b"")
        assert answer.error == "This host is not public."

    async def test_proxies_of_the_environment_are_not_used(
        self, tls: tuple[ssl.SSLContext, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server, trust = tls
        with receiver(status(200)) as proxy, receiver(status(200), tls=server) as there:
            for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
                monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
            answer = await post(sender(there.port, Names(["127.0.0.1"]), trust), there.port)
        assert answer.accepted
        assert proxy.arrived == []


class TestT20AnswersAreBounded:
    @pytest.fixture
    def local(self) -> Sender:
        return Sender(rules=Rules(loopback=True), attempt_seconds=1.0)

    async def go(self, local: Sender, port: int) -> Answer:
        return await local.send(url=f"http://127.0.0.1:{port}/", headers={}, body=b"{}")

    async def test_t19_redirects_are_not_followed(self, local: Sender) -> None:
        with receiver(status(200)) as inside:
            target = f"http://127.0.0.1:{inside.port}/latest/meta-data/"
            for code in (301, 302, 303, 307, 308):
                with receiver(status(code, location=target)) as there:
                    answer = await self.go(local, there.port)
                assert (answer.status, answer.accepted) == (code, False)
            assert inside.arrived == []

    async def test_t20_a_body_is_read_to_its_first_kibibyte_and_never_unpacked(self, local: Sender) -> None:
        with receiver(status(500, b"\xff\x00" * 500_000, content_encoding="gzip")) as there:
            answer = await self.go(local, there.port)
        assert answer.status == 500
        assert len(answer.body) == BODY_BYTES_MAX
        assert set(answer.body) == {"\ufffd"}

    async def test_t20_an_endless_body_ends(self, local: Sender) -> None:
        def endless(handler: BaseHTTPRequestHandler, number: int) -> None:
            handler.send_response(200)
            handler.send_header("transfer-encoding", "chunked")
            handler.end_headers()
            while True:
                handler.wfile.write(b"400\r\n" + b"x" * 1024 + b"\r\n")

        with receiver(endless) as there:
            answer = await self.go(local, there.port)
        assert (answer.status, len(answer.body)) == (200, BODY_BYTES_MAX)

    async def test_a_body_that_stalls_does_not_undo_its_status(self, local: Sender) -> None:
        release = threading.Event()

        def stalls(handler: BaseHTTPRequestHandler, number: int) -> None:
            handler.send_response(200)
            handler.send_header("content-length", "100")
            handler.end_headers()
            handler.wfile.flush()
            release.wait(20)

        with receiver(stalls) as there:
            answer = await self.go(local, there.port)
            release.set()
        assert answer.accepted

    async def test_a_server_that_says_nothing_or_drips_is_left(self, local: Sender) -> None:
        release = threading.Event()

        def drips(handler: BaseHTTPRequestHandler, number: int) -> None:
            handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
            while not release.wait(0.1):
                handler.wfile.write(b"x-a: b\r\n")
                handler.wfile.flush()

        def silent(handler: BaseHTTPRequestHandler, number: int) -> None:
            release.wait(20)
            handler.close_connection = True

        for behave in (silent, drips):
            release.clear()
            with receiver(behave) as there:
                answer = await self.go(local, there.port)
                release.set()
            assert answer.status is None
            assert answer.error == "No whole answer within 1 seconds."

    async def test_headers_without_end_are_left(self, local: Sender) -> None:
        def many(handler: BaseHTTPRequestHandler, number: int) -> None:
            handler.wfile.write(b"HTTP/1.1 200 OK\r\n" + b"x-a: " + b"b" * 10_000_000 + b"\r\n\r\n")

        with receiver(many) as there:
            answer = await self.go(local, there.port)
        assert (answer.status, answer.error) == (None, "The connection broke (RemoteProtocolError).")

    async def test_nobody_there_is_said(self, local: Sender) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            answer = await self.go(local, taken.getsockname()[1])
        assert answer.error == "The host did not accept a connection."

    async def test_retry_after_is_read_in_seconds_only(self, local: Sender) -> None:
        for given, expected in (("120", 120), ("-1", None), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("9" * 30, None)):
            with receiver(status(503, retry_after=given)) as there:
                answer = await self.go(local, there.port)
            assert answer.retry_after_s == expected
