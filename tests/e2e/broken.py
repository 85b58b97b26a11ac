"""A platform's gateway with a mistake of ours in three places: what no client can provoke. Run by `test_canaries.py`.

Where it breaks, the caller's key is in reach, and the exceptions say it: in their text, in their cause, in a variable.
"""

from __future__ import annotations

from typing import Any, NoReturn

from controlplane.asgi import application
from gateway.admission import Admission, Caller
from tenants.api.keys import KeyRoute

__all__ = ["application"]


def _break(place: str, key: str) -> NoReturn:
    try:
        int(key)
    except ValueError as error:
        raise RuntimeError(f"a fault that only tests have, in {place}: {{'authorization': 'Bearer {key}'}}") from error
    raise AssertionError(key)


async def _admit(self: Admission, caller: Caller, asked: Any, **_: Any) -> NoReturn:
    _break("admission", caller.bearer)


def _list(self: KeyRoute, request: Any, *_: Any, **__: Any) -> NoReturn:
    _break("management", request.headers["authorization"].removeprefix("Bearer "))


Admission.admit = _admit  # type: ignore[method-assign]
KeyRoute.list = _list  # type: ignore[method-assign]
