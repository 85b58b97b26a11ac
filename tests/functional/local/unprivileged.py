"""A program that root starts and that goes on as somebody else: makes a PostgreSQL cluster, runs it until stdin ends.

`unprivileged.py UID DIRECTORY PORT`, used by test_stores. All that it needs is imported before, because that
user may not be able to read root's interpreter. It prints one line once the server serves.
"""

import asyncio  # noqa: F401 - LocalServer imports it when it starts, and asyncio its threads
import concurrent.futures.thread  # noqa: F401
import os
import sys
from pathlib import Path

from controlplane.local import postgres, stores
from controlplane.local.children import LocalServer

PASSWORD = "only-for-tests"


def main() -> None:
    uid, place, port = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    cluster = postgres.Cluster.choose(wanted=place / "postgres", digest="d", password=PASSWORD)
    assert cluster.ensure_initialised()
    server = LocalServer(spec=stores.postgres(cluster=cluster, port=port), log=place / "postgres.log")
    try:
        server.start()
        sys.stdout.write(f"serves {cluster.directory}\n")
        sys.stdout.flush()
        sys.stdin.read()
    finally:
        server.stop()


if __name__ == "__main__":
    main()
