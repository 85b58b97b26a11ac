"""Local mode: the ports of its processes, chosen once and kept.

Invariants: a port that was given out stays with its name over restarts, unless another program took it
meanwhile; no two platforms of a machine choose the same one, however near in time they start, for who chose it
holds it by a socket of the kernel's own until it ends. Ports come from below the kernel's range for outgoing
connections, so that no client connection of this machine can sit on one while its server is down.
"""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from controlplane.local.paths import write_private

FIRST, LAST = 20_000, 32_000
GATEWAY_FIRST, GATEWAY_LAST = 8080, 8180

_held: dict[int, int] = {}  # descriptors, open until the process ends


class NoFreePort(Exception):
    """Every port that may be used is taken."""


def is_free(port: int) -> bool:
    """True when a server could listen on 127.0.0.1:port now."""
    return find_refusal(port) is None


def find_refusal(port: int) -> int | None:
    """The kernel's error number for a server on 127.0.0.1:port, None when it could listen there now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return error.errno
    return None


def hold(port: int) -> bool:
    """Keeps the port for this process as long as it lives; False when another platform keeps it, or it is taken.

    Held is a name in the kernel's abstract namespace, not the port itself: its server could not listen there then.
    """
    if not is_free(port):
        return False
    if port not in _held:
        holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            holder.bind(f"\0weir-port-{port}")
        except OSError:
            holder.close()
            return False
        _held[port] = holder.detach()
    return True


def find_holder(port: int) -> str:
    """Who listens on the port, as far as this user may see: "python3 (process 17)", else "another program"."""
    wanted = f":{port:04X}"
    inodes: set[str] = set()
    for table in ("tcp", "tcp6"):
        with suppress(FileNotFoundError):
            rows = [line.split() for line in Path("/proc/net", table).read_text().splitlines()[1:]]
            inodes |= {f"socket:[{row[9]}]" for row in rows if row[1].endswith(wanted) and row[3] == "0A"}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(link.readlink()) in inodes for link in (entry / "fd").iterdir()):
                return f"{(entry / 'comm').read_text().strip()} (process {entry.name})"
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return "another program"


def find_free(*, taken: Iterable[int] = ()) -> int:
    """A free port that is not in `taken`. Random, so that two clones rarely want the same one."""
    avoid = set(taken)
    for _ in range(2_000):
        port = random.randrange(FIRST, LAST)  # noqa: S311 - spreading, not secrecy
        if port not in avoid and hold(port):
            return port
    message = f"no free port on 127.0.0.1 between {FIRST} and {LAST}"
    raise NoFreePort(message)


def find_gateway_port(*, preferred: int) -> int:
    """`preferred` when it is free, else the next free one above it (a hundred are tried)."""
    for port in range(preferred, preferred + GATEWAY_LAST - GATEWAY_FIRST):
        if hold(port):
            return port
    message = f"ports {preferred} to {preferred + 99} are all taken; set PORT to a free one"
    raise NoFreePort(message)


def _read_ports(path: Path) -> dict[str, int]:
    """What is written down; nothing when the file is damaged: then ports are chosen anew."""
    try:
        return {str(name): int(port) for name, port in json.loads(path.read_text()).items()}
    except (FileNotFoundError, ValueError, TypeError, AttributeError):
        return {}


class PortBook:
    """The ports of one state directory, by name, in `ports.json`."""

    def __init__(self, *, path: Path) -> None:
        self._path = path
        self._ports = _read_ports(path)

    def choose(self, *, name: str) -> int:
        """The port kept for `name`, or a new one when there is none or another program took it."""
        kept = self._ports.get(name)
        if kept is not None and hold(kept):
            return kept
        return self.keep(name=name, port=find_free(taken=self._ports.values()))

    def keep(self, *, name: str, port: int) -> int:
        """Writes the port down and returns it."""
        self._ports[name] = port
        write_private(self._path, json.dumps(self._ports, indent=2) + "\n")
        return port

    def all(self) -> frozenset[int]:
        """Every port that is written down."""
        return frozenset(self._ports.values())

    def find(self, *, name: str) -> int | None:
        """The port kept for `name`, free or not."""
        return self._ports.get(name)
