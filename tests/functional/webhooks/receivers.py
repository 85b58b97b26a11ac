"""Real HTTP and HTTPS receivers on a port of their own, with certificates made for the occasion."""

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Behaviour = Callable[[BaseHTTPRequestHandler, int], None]


@dataclass
class Receiver:
    """What arrived, and what is answered: `behave` is called with the handler and the number of the request."""

    port: int
    behave: Behaviour
    arrived: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


def status(code: int, body: bytes = b"ok", **headers: str) -> Behaviour:
    def behave(handler: BaseHTTPRequestHandler, number: int) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return behave


@contextmanager
def receiver(behave: Behaviour, *, tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """A server on 127.0.0.1 until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            mine.arrived.append(({name.lower(): value for name, value in self.headers.items()}, body))
            mine.paths.append(self.path)
            try:
                mine.behave(self, len(mine.arrived))
            except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
                self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # a client that hangs up during the handshake is what some tests want

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    mine = Receiver(port=server.server_address[1], behave=behave)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield mine
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def certificates(folder: Path, *, host: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context with a certificate for `host`, and a client's that trusts its maker alone."""
    now = datetime.now(UTC)  # noqa: TID251 - certificates are judged by the real clock
    maker_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    maker_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a maker of test certificates")])
    maker = (
        _certificate(maker_name, maker_name, maker_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(maker_key.public_key()), critical=False)
        .sign(maker_key, hashes.SHA256())
    )
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    leaf = (
        _certificate(name, maker_name, key.public_key(), now)
        .add_extension(x509.SubjectAlternativeName([_alternative(host)]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(maker_key.public_key()), critical=False)
        .sign(maker_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    chain = folder / "server.pem"
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    chain.write_bytes(private + leaf.public_bytes(pem))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(chain)
    client = ssl.create_default_context(cadata=maker.public_bytes(pem).decode())
    return server, client


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _certificate(subject: x509.Name, issuer: x509.Name, key: Any, now: datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
    )
