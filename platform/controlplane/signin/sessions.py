"""How long a session of the console lives: idle, and in all. Middleware; called for requests with a session cookie.

Invariant: no session outlives SESSION_LIFE_SECONDS, however busy; the row is written at most once a minute.
"""

from collections.abc import Callable

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import SESSION_KEY, logout
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

BEGUN, SEEN = "weir_begun", "weir_seen"
WRITE_EVERY_SECONDS = 60


def begin(request: HttpRequest) -> None:
    """Starts both clocks; called when somebody has signed in."""
    request.session[BEGUN] = request.session[SEEN] = _now()


class SessionLimits:
    """Signs out whom both limits no longer cover."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if settings.SESSION_COOKIE_NAME in request.COOKIES and SESSION_KEY in request.session:
            now = _now()
            seen = request.session.get(SEEN, 0)
            if over(begun=request.session.get(BEGUN, 0), seen=seen, now=now):
                logout(request)
                messages.info(request, "You were signed out: this session was idle, or open, for too long.")
            elif now - seen >= WRITE_EVERY_SECONDS:
                request.session[SEEN] = now
        return self._get_response(request)


def over(*, begun: int, seen: int, now: int) -> bool:
    """Whether a session has passed a limit; all in seconds since the epoch. A clock that went back ends nothing."""
    return now - begun > settings.SESSION_LIFE_SECONDS or now - seen > settings.SESSION_IDLE_SECONDS


def _now() -> int:
    return int(timezone.now().timestamp())
