"""Gives the sign-in pages what the console's own pages have: its name, colours and sidebar."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

_OURS = ("account_", "mfa_")
_TITLES = {
    "mfa_index": "My second factor",
    "mfa_activate_totp": "Add an authenticator app",
    "mfa_deactivate_totp": "Remove the authenticator app",
    "mfa_list_webauthn": "Security keys",
    "mfa_add_webauthn": "Add a security key",
    "mfa_view_recovery_codes": "Recovery codes",
    "mfa_generate_recovery_codes": "New recovery codes",
}


def console(request: HttpRequest) -> dict[str, Any]:
    """Template context processor; nothing for other pages."""
    match = request.resolver_match
    if match is None or not (match.url_name or "").startswith(_OURS):
        return {}
    return {**admin.site.each_context(request), "title": _TITLES.get(match.url_name or "", "Sign-in and second factor")}
