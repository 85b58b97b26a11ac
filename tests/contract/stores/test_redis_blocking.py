"""The blocking client on real Valkey, and on a server that takes connections and says nothing."""

import ast
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from stores import redis_blocking
from stores.redis_blocking import blocking_redis

ROOT = Path(__file__).parents[3]


@pytest.fixture
def silent() -> Iterator[str]:
    """A server's address that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"


class TestBlockingRedis:
    def test_is_one_client_for_each_address_and_speaks_bytes(self, valkey_url: str) -> None:
        client = blocking_redis(valkey_url)
        client.set("blocking", "ü")
        assert client.get("blocking") == "ü".encode()
        assert blocking_redis(valkey_url) is client

    def test_ends_every_wait(self, silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(redis_blocking, "WAIT_SECONDS", 0.05)
        with pytest.raises(RedisError):
            blocking_redis(silent).ping()

    def test_is_opened_nowhere_else(self) -> None:
        """Every blocking client has the same bounds: nobody but this module, and local setup, makes one."""
        found = []
        for room in ("platform", "tenants", "safety", "billing", "workers"):
            for path in (ROOT / room).rglob("*.py"):
                relative = path.relative_to(ROOT).as_posix()
                if relative.startswith(("platform/stores/", "platform/controlplane/local/")):
                    continue
                for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                    if isinstance(node, ast.Attribute) and node.attr == "from_url":
                        found.append(relative)
        assert found == []
