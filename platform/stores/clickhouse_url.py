"""Opens the ClickHouse port by URL. Called by the meter, by reports and by `doctor`.

chdb+unix:///path/to/meter.sock      the meter process owns an embedded ClickHouse and answers queries
clickhouse://user:pw@host:9000/db    a server, by the native protocol (`clickhouses://` for TLS)
"""

from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from stores.clickhouse import ClickHouse, Reader

LOCAL_SCHEME = "chdb+unix"
_SERVER_SCHEMES = ("clickhouse", "clickhouses")


def open_clickhouse(url: str) -> Reader:
    """A reader for reports and the admin. Raises ValueError for an unknown scheme."""
    # Adapters are imported where they are chosen: chDB is large, and no process needs two.
    if is_local(url):
        from stores.clickhouse_socket import ChdbClient

        return ChdbClient(path=socket_path(url))
    return _open_server(url)


def open_writer(url: str, *, directory: Path) -> ClickHouse:
    """The full port, for the meter alone. In local mode it owns the embedded data in `directory`.

    Raises ValueError for an unknown scheme, ClickHouseUnavailable when another process owns the directory.
    """
    if is_local(url):
        from stores.clickhouse_chdb import ChdbOwner

        return ChdbOwner(directory=directory)
    return _open_server(url)


def is_local(url: str) -> bool:
    """Whether the meter is the store's owner and serves it to the others."""
    return urlsplit(url).scheme == LOCAL_SCHEME


def local_url(path: Path) -> str:
    """The URL of a meter that listens at this socket."""
    return f"{LOCAL_SCHEME}://{quote(str(path))}"


def socket_path(url: str) -> Path:
    """Where the meter listens in local mode. Raises ValueError when `url` names no absolute path."""
    parts = urlsplit(url)
    path = Path(unquote(parts.path))
    if not is_local(url) or not path.is_absolute() or parts.query or parts.fragment:
        raise ValueError(f"a local CLICKHOUSE_URL is {LOCAL_SCHEME}:///absolute/path/to/meter.sock")
    return path


def _open_server(url: str) -> ClickHouse:
    if urlsplit(url).scheme not in _SERVER_SCHEMES:
        raise ValueError(f"CLICKHOUSE_URL begins with {LOCAL_SCHEME}:// or {':// or '.join(_SERVER_SCHEMES)}://")
    from stores.clickhouse_native import NativeClickHouse

    return NativeClickHouse(url=url)
