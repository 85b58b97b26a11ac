"""System checks with ids; `manage.py check --deploy` runs those that only matter in production."""

from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Tags, register

from controlplane.env import LOCAL_SECRET, environment


@register(Tags.security, deploy=True)
def secret_is_yours(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    """weir.E001: the root secret of the source tree signs nothing in production."""
    if environment().secret.get_secret_value() == LOCAL_SECRET:
        return [
            Error("WEIR_SECRET is the development default.", hint="Set 32 or more random characters.", id="weir.E001")
        ]
    return []


@register(Tags.security, deploy=True)
def hosts_are_named(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    """weir.E002: which names are served is said in production, and not left to any Host header or to this machine."""
    if environment().allowed_hosts in ("", "*"):
        return [Error("WEIR_ALLOWED_HOSTS names no host.", hint="Name the public host names.", id="weir.E002")]
    return []


@register(deploy=True)
def usage_has_a_server(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    """weir.E003: chDB has one owner on one machine; production needs a ClickHouse server."""
    if environment().clickhouse.startswith("chdb"):
        return [Error("CLICKHOUSE_URL is not set.", hint="clickhouse://user:password@host:9000/weir", id="weir.E003")]
    return []
