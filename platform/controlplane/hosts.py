"""Whom this machine answers as where nobody named its hosts: itself. Called by `settings`, outside production.

Invariant: never a name that a stranger can point here (DNS rebinding): loopback, the machine's own name, its own
addresses and the address that it listens on. Nothing is asked of a name server.
"""

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

LOOPBACK = (".localhost", "127.0.0.1", "[::1]")
_ADDRESS_OF = 0x8915  # SIOCGIFADDR, Linux
_IPV6 = Path("/proc/net/if_inet6")


def own_hosts(*, listens_on: str) -> list[str]:
    """For ALLOWED_HOSTS, as a Host header writes them; `listens_on` is a name or an address, or empty."""
    name = socket.gethostname().lower()
    found = [*LOOPBACK, name, f"{name.partition('.')[0]}.local", *_addresses()]
    if listens_on:
        found.append(_written(listens_on))
    return list(dict.fromkeys(host for host in found if host not in ("", "*", ".local")))


def _addresses() -> list[str]:
    """This machine's own addresses; where the system does not tell, they have to be named in the settings."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, interface in socket.if_nameindex():
            asked = struct.pack("256s", interface.encode()[:15])
            try:
                told = fcntl.ioctl(probe.fileno(), _ADDRESS_OF, asked)
            except OSError:  # an interface without an IPv4 address, or another system than Linux
                continue
            found.append(socket.inet_ntoa(told[20:24]))
    lines = _IPV6.read_text(encoding="ascii").splitlines() if _IPV6.exists() else []
    return found + [_written(str(ipaddress.IPv6Address(int(line.split()[0], 16)))) for line in lines]


def _written(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host.lower()
