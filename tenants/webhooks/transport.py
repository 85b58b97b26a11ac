"""One POST to a tenant's endpoint, by httpcore with a network backend of our own. Called by `dispatch`; no Django.

Invariants: the name is resolved once for an attempt, every address it has is checked, and the connection goes to a
checked address itself (no second look-up, hence no DNS rebinding); TLS is verified for the URL's host name; nothing is
followed, no proxy of the environment is used, no connection is kept; time, headers and body of the answer are bounded,
and the body is never decompressed.
"""

import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

import anyio
import httpcore

from tenants.webhooks.destination import Destination, Refused, Rules, check, parse

ATTEMPT_SECONDS = 15.0
CONNECT_SECONDS = 5.0
BODY_SECONDS = 3.0
BODY_BYTES_MAX = 1024
ADDRESSES_MAX = 8

SocketOption = tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]
Resolver = Callable[[str, int], Awaitable[Sequence[str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of one attempt. `error` is empty when an HTTP answer arrived; `status` is None when none did."""

    status: int | None
    body: str
    error: str
    latency_ms: int
    retry_after_s: int | None = None

    @property
    def accepted(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


async def system_resolver(host: str, port: int) -> Sequence[str]:
    """The operating system's answer. Raises OSError."""
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for _, _, _, _, sockaddr in found]


class PinnedBackend(httpcore.AsyncNetworkBackend):
    """Resolves, checks and connects in one place: no other code of an attempt can open a connection."""

    def __init__(self, destination: Destination, *, rules: Rules, resolver: Resolver) -> None:
        self._destination = destination
        self._rules = rules
        self._resolver = resolver
        self._plain: httpcore.AsyncNetworkBackend = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's own interface
        local_address: str | None = None,
        socket_options: Iterable[SocketOption] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """A connection to a checked address of `host`. Raises Refused, and httpcore's ConnectError."""
        failure: Exception | None = None
        for address in await self._addresses(host, port):
            try:
                return await self._plain.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        assert failure is not None
        raise failure

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's own interface
        socket_options: Iterable[SocketOption] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Never. Raises Refused."""
        raise Refused("A socket file is not a webhook.")

    async def sleep(self, seconds: float) -> None:
        """httpcore's pause between retries; there are none."""
        await self._plain.sleep(seconds)

    async def _addresses(self, host: str, port: int) -> list[str]:
        if (host, port) != (self._destination.host, self._destination.port):
            raise Refused("The connection was made for another host.")
        try:
            found = list(dict.fromkeys(await self._resolver(host, port)))
        except (OSError, UnicodeError) as error:
            raise Refused("The host has no public address.") from error
        if not found:
            raise Refused("The host has no public address.")
        # One address that is not public condemns all: a name that points inside and outside is no accident.
        checked = [str(check(each, local=self._destination.local, rules=self._rules)) for each in found]
        return checked[:ADDRESSES_MAX]


class Sender:
    """Sends bodies to URLs. It has no state: one may serve a whole process."""

    def __init__(
        self,
        *,
        rules: Rules,
        resolver: Resolver = system_resolver,
        trust: ssl.SSLContext | None = None,
        attempt_seconds: float = ATTEMPT_SECONDS,
    ) -> None:
        self._rules = rules
        self._resolver = resolver
        self._trust = trust or _public_trust()
        self._attempt_seconds = attempt_seconds

    async def send(self, *, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """POST once. Failures are answers; only cancellation leaves as an exception."""
        began = time.monotonic()
        status: int | None = None
        text, error, retry_after = "", "", None
        try:
            status, text, retry_after = await self._post(parse(url, rules=self._rules), headers, body)
        except Refused as refused:
            error = str(refused)
        except TimeoutError:
            error = f"No whole answer within {self._attempt_seconds:g} seconds."
        except (httpcore.ConnectError, httpcore.ConnectTimeout) as failure:
            error = _why_not_connected(failure)
        except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError) as failure:
            error = f"The connection broke ({type(failure).__name__})."
        except (OSError, UnicodeError, ValueError) as failure:
            error = f"The request could not be sent ({type(failure).__name__})."
        elapsed = int((time.monotonic() - began) * 1000)
        return Answer(status=status, body=text, error=error, latency_ms=elapsed, retry_after_s=retry_after)

    async def _post(
        self, destination: Destination, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, str, int | None]:
        backend = PinnedBackend(destination, rules=self._rules, resolver=self._resolver)
        timeouts = dict.fromkeys(("read", "write", "pool"), self._attempt_seconds) | {"connect": CONNECT_SECONDS}
        request = httpcore.Request(
            "POST",
            destination.url,
            headers=[
                ("host", destination.authority),
                *headers.items(),
                ("content-length", str(len(body))),
                ("connection", "close"),
                ("accept-encoding", "identity"),
            ],
            content=body,
            extensions={"timeout": timeouts},
        )
        async with httpcore.AsyncConnectionPool(
            ssl_context=self._trust, max_connections=1, retries=0, network_backend=backend
        ) as pool:
            with anyio.fail_after(self._attempt_seconds):
                response = await pool.handle_async_request(request)
            # The status has come. What follows has a bound of its own, so that it cannot undo it.
            return response.status, _text(await _beginning(response)), _retry_after(response.headers)


async def _beginning(response: httpcore.Response) -> bytes:
    """The first bytes of a body; fewer when it stalls or breaks."""
    seen = bytearray()
    with (
        anyio.move_on_after(BODY_SECONDS),
        suppress(httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError),
    ):
        async for chunk in response.aiter_stream():
            seen += chunk
            if len(seen) >= BODY_BYTES_MAX:
                break
        await response.aclose()
    return bytes(seen[:BODY_BYTES_MAX])


@lru_cache(maxsize=1)
def _public_trust() -> ssl.SSLContext:
    context: ssl.SSLContext = httpcore.default_ssl_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _text(raw: bytes) -> str:
    """What PostgreSQL can keep of any bytes."""
    return raw.decode("utf-8", errors="replace").replace("\x00", "\ufffd")


def _retry_after(headers: Sequence[tuple[bytes, bytes]]) -> int | None:
    """Whole seconds of a `Retry-After`; its other form, a date, is not read."""
    for name, value in headers:
        if name.lower() == b"retry-after" and value.isdigit() and len(value) <= 9:
            return int(value)
    return None


def _why_not_connected(failure: Exception) -> str:
    cause: BaseException | None = failure
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"The certificate is not valid for this host: {cause.verify_message}."[:200]
        if isinstance(cause, ssl.SSLError):
            return "TLS could not be agreed on."
        cause = cause.__cause__ or cause.__context__
    return "The host did not accept a connection."
