"""Which URLs and addresses a webhook may go to. Pure: no store, no socket, no Django. Used by `services` when a URL is
set and by `transport` for every connection.

Threat: whoever may set a webhook may make this platform send a request to where it stands (SSRF). Invariants: one
spelling per host (no user info, no number in disguise, no unicode, no trailing dot); an address is taken only if it is
known to be public, so that what nobody has thought of is refused; an address within another (mapped, 6to4, Teredo,
compatible) is refused, NAT64 is judged by the address inside.
Sources: IANA special-purpose address registries (RFC 6890), RFC 6052, RFC 4291; Python's `is_global` of 3.11 calls
multicast, 6to4 and mapped addresses global, so that lists of our own stand beside it.
"""

import ipaddress
import re
from dataclasses import dataclass
from typing import NoReturn
from urllib.parse import urlsplit

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

URL_CHARACTERS_MAX = 2048
PORTS = frozenset({443, 8443})
# RFC 3986's characters: no blank, control character, backslash, quote or letter outside of ASCII.
_CHARACTERS = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+")
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
# The last label begins with a letter: 127.1, 2130706433, 0x7f.1 and 0177.0.0.1 are no names.
_NAME = re.compile(rf"(?:{_LABEL}\.)+[a-z](?:[a-z0-9-]{{0,61}}[a-z0-9])?")
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_PRIVATE_ENDINGS = (".localhost", ".local", ".internal", ".intranet", ".home.arpa", ".onion", ".invalid", ".arpa")

_UNICAST = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_NEVER: tuple[Network, ...] = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT, Alibaba's metadata
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's platform address: public by number, answered within
        "169.254.0.0/16",  # link-local, metadata of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",  # Oracle's metadata
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "2001::/23",  # Teredo, benchmarking, ORCHID
        "2001:db8::/32",
        "2002::/16",  # 6to4
        "2620:4f:8000::/48",
        "3fff::/20",
    )
)


class Refused(ValueError):
    """The reason is shown to whoever set the URL; it names no address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What an operator may change. `loopback` is for development; `allow` opens private networks by intent."""

    loopback: bool = False
    ports: frozenset[int] = PORTS
    allow: tuple[Network, ...] = ()
    deny: tuple[Network, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """A URL that may be tried: its parts, checked and in one spelling."""

    scheme: str
    host: str
    port: int
    target: str
    local: bool

    @property
    def authority(self) -> str:
        """Host and, unless it is the scheme's own, port: the value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = self.port == (443 if self.scheme == "https" else 80)
        return host if usual else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """Scheme, host and port: what may be written into logs and events, for a path may hold a secret."""
        return f"{self.scheme}://{self.authority}"

    @property
    def url(self) -> str:
        return self.origin + self.target


def parse(url: str, *, rules: Rules) -> Destination:
    """The parts of a URL. Raises Refused with the reason."""
    if not url or len(url) > URL_CHARACTERS_MAX:
        raise Refused(f"A URL has 1 to {URL_CHARACTERS_MAX} characters.")
    if _CHARACTERS.fullmatch(url) is None:
        raise Refused("Write the URL in ASCII: percent-encode its path, and a host as xn--….")
    scheme, colon, rest = url.partition("://")
    scheme = scheme.lower()
    if not colon or scheme not in ("http", "https"):
        raise Refused("The URL must begin with https://.")
    host, port = _authority(f"{scheme}://{rest}")
    local = host in _LOCAL_NAMES
    if local and not rules.loopback:
        raise Refused("This host is not public.")
    if scheme == "http" and not local:
        raise Refused("The URL must begin with https://.")
    if not local:
        _check_name(host)
    port = port or (443 if scheme == "https" else 80)
    if not local and port not in rules.ports:
        raise Refused(f"Port {port} is not open to webhooks; use {', '.join(map(str, sorted(rules.ports)))}.")
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Destination(scheme=scheme, host=host, port=port, target=target, local=local)


def check(address: str, *, local: bool, rules: Rules) -> Address:
    """The address to connect to. Raises Refused unless it is public, or loopback for a local destination."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError as error:
        raise Refused("The host has no public address.") from error
    inner = _judged(ip)
    if _within(ip, rules.deny) or (inner is not None and _within(inner, rules.deny)):
        _refuse()
    if local:
        return ip if ip.is_loopback else _refuse()
    if _within(ip, rules.allow):
        return ip
    if inner is None or not inner.is_global or inner.is_multicast or _within(inner, _NEVER):
        _refuse()
    return ip


def networks(text: str) -> tuple[Network, ...]:
    """Networks of a setting, separated by commas. Raises ValueError."""
    return tuple(ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip())


def _authority(url: str) -> tuple[str, int | None]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise Refused("The host or port of the URL cannot be read.") from error
    if "@" in parts.netloc:
        raise Refused("A URL with a user name or password is not accepted.")
    if "#" in url:
        raise Refused("A URL with a fragment is not accepted.")
    if not host or parts.netloc.endswith(":") or port == 0:
        raise Refused("The host or port of the URL cannot be read.")
    return host, port


def _check_name(host: str) -> None:
    if ":" in host or host.replace(".", "").isdigit():
        raise Refused("Name the host; an address is not accepted.")
    if len(host) > 253 or _NAME.fullmatch(host) is None:
        raise Refused("This is not a public host name.")
    if host.endswith(_PRIVATE_ENDINGS):
        raise Refused("This host is not public.")


def _judged(ip: Address) -> Address | None:
    """The address whose reach decides; None when no address of its kind is taken."""
    if isinstance(ip, ipaddress.IPv4Address):
        return ip
    if ip in _NAT64:
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip if ip in _UNICAST and ip.scope_id is None else None


def _within(ip: Address, among: tuple[Network, ...]) -> bool:
    return any(ip.version == network.version and ip in network for network in among)


def _refuse() -> NoReturn:
    # One text for a name that is not there and one that is private: no map of the network within.
    raise Refused("The host has no public address.")
