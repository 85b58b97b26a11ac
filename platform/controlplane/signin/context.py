"""Gives the sign-in pages what the console's own pages have: its name, colours and sidebar."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

_OURS = ("account_", "mfa_")


def console(request: HttpRequest) -> dict[str, Any]:
    """Template context processor; nothing for other pages."""
    match = request.resolver_match
    if match is None or not (match.url_name or "").startswith(_OURS):
        return {}
    return {**admin.site.each_context(request), "title": "Sign-in and second factor"}
