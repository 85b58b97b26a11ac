"""Where a request comes from, and whether its key may be used from there. Step 2; pure.

Invariant: an address that a client can write itself counts only when the socket's other end is a proxy of ours; a key
that names networks is refused from an address that is not known.
"""

from collections.abc import Mapping
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

from contracts.errors import PermissionDenied
from contracts.tenancy import TenantContext

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

HOPS_MAX = 32


def client_address(scope: Mapping[str, Any], *, trusted: tuple[str, ...]) -> str:
    """The client's address as text; empty where it cannot be known (a Unix socket).

    The socket's own, unless that is in `trusted` (CIDR blocks of proxies): then the last address in X-Forwarded-For
    that is not a trusted proxy's. An entry that is no address ends the search at the last one that was.
    """
    peer = _address(str((scope.get("client") or ("",))[0]))
    if peer is None or not trusted or not _within(peer, trusted):
        return "" if peer is None else str(peer)
    hops = [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"x-forwarded-for"]
    for hop in reversed(",".join(hops).split(",")[-HOPS_MAX:]):
        address = _address(hop.strip())
        if address is None:
            break
        peer = address
        if not _within(peer, trusted):
            break
    return str(peer)


def require_network(context: TenantContext, *, address: str) -> None:
    """Raises PermissionDenied when the key may not be used from this address."""
    if not context.allowed_networks:
        return
    known = _address(address)
    if known is None or not _within(known, context.allowed_networks):
        raise PermissionDenied("this API key may not be used from this network address", code="network_not_allowed")


def _within(address: Address, networks: tuple[str, ...]) -> bool:
    return any(address.version == network.version and address in network for network in _parsed(networks))


@lru_cache(maxsize=4_096)
def _parsed(networks: tuple[str, ...]) -> tuple[Network, ...]:
    return tuple(map(ip_network, networks))


def _address(text: str) -> Address | None:
    """An address, IPv4 also where it is written as mapped into IPv6; None for any other text."""
    try:
        address = ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
