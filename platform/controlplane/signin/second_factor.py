"""Nobody works in the console on a password alone: middleware behind authentication.

Who has a second factor must have used it in this session; where WEIR_REQUIRE_MFA is on (by default in production), who
has none must enrol one first. Invariant: no page but those of signing in and out is open before.
"""

from collections.abc import Callable
from urllib.parse import urlencode

from allauth.account.internal.flows.login import get_authentication_records
from allauth.mfa.models import Authenticator
from allauth.mfa.utils import is_mfa_enabled
from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.urls import Resolver404, resolve, reverse

_FACTORS = [Authenticator.Type.TOTP, Authenticator.Type.WEBAUTHN]
_LEAVING = frozenset({"account_login", "account_logout", "logout", "login", "jsi18n"})
_PROVING = _LEAVING | {"mfa_reauthenticate", "mfa_reauthenticate_webauthn"}
_ENROLLING = _LEAVING | {"account_reauthenticate", "mfa_index", "mfa_activate_totp", "mfa_add_webauthn"}


class SecondFactor:
    """Sends a signed-in person to the step that is missing; programs that ride on a session get 403."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        step = missing_step(request)
        return self._get_response(request) if step is None else _send_to(request, step)


def missing_step(request: HttpRequest) -> str | None:
    """The name of the page where the second factor is proved or enrolled; None when this request may go on."""
    if settings.SESSION_COOKIE_NAME not in request.COOKIES or not request.user.is_authenticated:
        return None
    if is_mfa_enabled(request.user, _FACTORS):
        proved = any(record.get("method") == "mfa" for record in get_authentication_records(request, request.user))
        return None if proved or _name(request) in _PROVING else "mfa_reauthenticate"
    if not settings.REQUIRE_SECOND_FACTOR or _name(request) in _ENROLLING:
        return None
    return "mfa_activate_totp"


def _send_to(request: HttpRequest, step: str) -> HttpResponse:
    if not request.path.startswith("/admin/"):
        message = "This session has not proved its second factor; do so in the console."
        error = {"message": message, "type": "permission_error", "param": None, "code": "second_factor_required"}
        return JsonResponse({"error": error}, status=403)
    if step == "mfa_activate_totp":
        messages.warning(request, "This console needs a second factor: enrol an authenticator app to go on.")
        return HttpResponseRedirect(reverse(step))
    return HttpResponseRedirect(f"{reverse(step)}?{urlencode({'next': request.get_full_path()})}")


def _name(request: HttpRequest) -> str:
    """The URL's name, found before the view is."""
    try:
        return resolve(request.path_info).url_name or ""
    except Resolver404:
        return ""
