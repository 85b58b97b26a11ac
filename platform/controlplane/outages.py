"""A store that is away, as one sentence for who typed a command. Called by `commandline.py`; reads no store.

Invariant: a sentence is given only for an error that says that a store could not be reached, or has nothing of ours in
it yet, or for a setting that is wrong; any other error keeps its traceback. No password and no value of a setting is
in it.
"""

from collections.abc import Iterator
from typing import Any

import psycopg
from django.db import Error as DjangoDatabaseError
from kombu.exceptions import OperationalError as BrokerError
from pydantic import ValidationError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from controlplane.env import Environment, environment
from controlplane.local.causes import find_fix
from controlplane.local.doctor import hide_password, is_ours
from controlplane.local.paths import Layout
from controlplane.local.ports import PortBook
from stores.clickhouse import ClickHouseUnavailable
from stores.clickhouse_url import is_local

_CAUSES_MAX = 50  # of one error, looked at
# PostgreSQL's classes of errors (appendix A) in which it is not there to be asked: 08, and 57P: it stops or starts.
_AWAY = ("08", "57P")
_ADVICE = "run `make up`, or set {variable} to the server to use"


def explain(error: BaseException) -> str | None:
    """The sentence for an error or one that caused it; None when no store and no setting is to blame."""
    for cause in _chain(error):
        if isinstance(cause, ValidationError) and cause.title == Environment.__name__:
            told = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in cause.errors())
            return f"the settings are wrong: {told}"
        if isinstance(cause, psycopg.errors.UndefinedTable):
            return (
                f"PostgreSQL at {_where('database_url')} has no tables of Weir: run `make up`, or `manage.py migrate`"
            )
        found = _store_of(cause)
        if found is not None:
            return _sentence(*found, said=str(cause))
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised from, and what is inside of a group; each once."""
    pending, seen = [error], set[int]()
    while pending and len(seen) < _CAUSES_MAX:
        one = pending.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        pending += [cause for cause in (one.__cause__, one.__context__) if cause is not None]
        if isinstance(one, BaseExceptionGroup):
            pending += one.exceptions


def _store_of(error: BaseException) -> tuple[str, str] | None:
    """The store that an error is about, and the field of the settings that names it."""
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        is_away = error.sqlstate is None or error.sqlstate.startswith(_AWAY)
        return ("PostgreSQL", "database_url") if is_away and not isinstance(error, DjangoDatabaseError) else None
    if isinstance(error, BrokerError):
        return "the broker", "broker_url"
    if isinstance(error, RedisConnectionError | RedisTimeoutError):
        return "Redis", "redis_url"
    if isinstance(error, ClickHouseUnavailable):
        return "ClickHouse", "clickhouse_url"
    return ("S3", "s3_url") if _is_s3(error) else None


def _is_s3(error: BaseException) -> bool:
    from botocore.exceptions import ConnectionError as S3ConnectionError  # a third of a second that few need
    from botocore.exceptions import HTTPClientError

    return isinstance(error, S3ConnectionError | HTTPClientError)


def _sentence(store: str, field: str, *, said: str) -> str:
    url = _url(field)
    layout = Layout.of_clone()
    is_given = field in environment().model_fields_set or (field == "broker_url" and _is_given("redis_url"))
    ours = is_local(url) if field == "clickhouse_url" else is_ours(url, ports=PortBook(path=layout.ports_file).all())
    fix = _ADVICE.format(variable=field.upper())
    if is_given and not ours:
        fix = find_fix(variable=field.upper(), said=said)
    return f"{store} is not reachable at {_where(field)}: {fix}"


def _is_given(field: str) -> bool:
    return field in environment().model_fields_set


def _url(field: str) -> str:
    settings = environment()
    known: dict[str, Any] = {
        "broker_url": settings.broker,
        "clickhouse_url": settings.clickhouse,
        "redis_url": settings.redis,
        "database_url": settings.database_url.get_secret_value(),
        "s3_url": settings.s3_url.get_secret_value() if settings.s3_url else "",
    }
    return str(known[field])


def _where(field: str) -> str:
    return hide_password(_url(field))
