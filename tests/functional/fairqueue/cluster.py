"""A real cluster of three Valkey nodes for the tests of the queue, from the server that local mode starts.

Called by the conftests of the rooms whose suites run on it. The nodes refuse a script that touches a key of another
slot, and send a client that asks the wrong one to the right one.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL

from redis import Redis
from redis.crc import key_slot

from controlplane.local import stores
from controlplane.local.children import LocalServer
from controlplane.local.ports import find_free

SLOTS = 16_384
NODES = 3
READY_SECONDS = 30.0


class Cluster:
    """Three masters with a third of the slots each."""

    def __init__(self, home: Path) -> None:
        ports: list[int] = []
        while len(ports) < 2 * NODES:
            ports.append(find_free(taken=ports))
        self._ports, self._buses = ports[:NODES], ports[NODES:]
        self._servers = [self._server(home / str(number), number) for number in range(NODES)]

    def _server(self, home: Path, number: int) -> LocalServer:
        spec = stores.valkey(data=home, port=self._ports[number], password=None, persistent=False)
        config = home / "valkey.conf"
        config.write_text(f"{config.read_text()}cluster-enabled yes\ncluster-port {self._buses[number]}\n")
        # Nobody wants the data afterwards.
        return LocalServer(spec=replace(spec, stop_signal=SIGKILL), log=home / "valkey.log")

    def start(self) -> None:
        """Raises TimeoutError when the nodes do not agree in time."""
        for server in self._servers:
            server.start()
        clients = [Redis(port=port) for port in self._ports]
        for number, client in enumerate(clients):
            first, last = self._range(number)
            client.execute_command("CLUSTER ADDSLOTSRANGE", first, last)
            client.execute_command("CLUSTER MEET", "127.0.0.1", self._ports[0], self._buses[0])
        deadline = time.monotonic() + READY_SECONDS
        while not all(_agrees(client) for client in clients):
            if time.monotonic() > deadline:
                raise TimeoutError("the nodes did not agree on their slots")
        for client in clients:
            client.close()

    def stop(self) -> None:
        for server in self._servers:
            server.stop()

    def url_of(self, key: str) -> str:
        """The node that owns the slot of `key`."""
        slot = key_slot(key.encode())
        number = next(n for n in range(NODES) if slot <= self._range(n)[1])
        return stores.valkey_url(port=self._ports[number], password=None)

    def urls_without(self, key: str) -> list[str]:
        """The nodes that do not own the slot of `key`."""
        every = [stores.valkey_url(port=port, password=None) for port in self._ports]
        return [url for url in every if url != self.url_of(key)]

    def empty(self) -> None:
        for port in self._ports:
            with Redis(port=port) as client:
                client.flushall()

    def node(self, url: str) -> Redis:
        """A blocking client of one node, for what an operator does to it."""
        return Redis.from_url(url)

    @staticmethod
    def _range(number: int) -> tuple[int, int]:
        return number * SLOTS // NODES, (number + 1) * SLOTS // NODES - 1


def _agrees(client: Redis) -> bool:
    info = client.execute_command("CLUSTER INFO")
    text = info if isinstance(info, dict) else dict(line.split(":", 1) for line in info.decode().split())
    return text["cluster_state"] == "ok" and text["cluster_known_nodes"] == str(NODES)
