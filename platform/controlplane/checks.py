"""System checks with ids; `manage.py check --deploy` runs those that only matter in production."""

import asyncio
from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Tags, register

from controlplane.env import LOCAL_SECRET, environment
from controlplane.local.doctor import examine_here


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


@register(deploy=True)
def servers_are_usable(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    """weir.E004: each store and the engine does what the platform asks of it: what `manage.py doctor` looks at."""
    return [
        Error(f"{finding.name}: {finding.detail}", hint=finding.fix, id="weir.E004")
        for finding in asyncio.run(examine_here())
        if not finding.is_good
    ]
