"""How long PostgreSQL works for a web process, and what a client hears when it was too long.

Called by `asgi.py` before the first connection, and by the view for errors. Jobs, migrations and commands are not
bounded: they have their own limits. Invariants: no statement of a web process runs, and no transaction of one sits idle
with its locks, for longer than stated, also when the thread that began it is gone; a client is told to come again,
never shown a traceback.
"""

from django.conf import settings
from django.db import InterfaceError, InternalError, OperationalError

from controlplane.env import Environment

AGAIN_SECONDS = 5
_IDLE_IN_TRANSACTION = "25P03"


def bound_web_process(env: Environment) -> None:
    """Every connection that this process opens from now on has the bounds of `env`."""
    settings.DATABASES["default"]["OPTIONS"]["options"] = bounds(
        statement_seconds=env.statement_seconds, idle_seconds=env.idle_transaction_seconds
    )


def bounds(*, statement_seconds: float, idle_seconds: float) -> str:
    """libpq's `options` for both; 0 = no bound."""
    idle = f"-c idle_in_transaction_session_timeout={int(idle_seconds * 1000)}"
    return f"-c statement_timeout={int(statement_seconds * 1000)} {idle}"


def is_away(error: BaseException | None) -> bool:
    """Whether PostgreSQL is gone, or gave this request up: to be tried again, not a fault of what was asked."""
    if isinstance(error, InternalError):
        return getattr(error.__cause__, "sqlstate", None) == _IDLE_IN_TRANSACTION
    return isinstance(error, OperationalError | InterfaceError)
