"""What the console's own pages share: the frame around them, tables of facts, links, moments."""

import datetime
from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.html import format_html
from django.utils.safestring import SafeString

Cell = str | SafeString
Row = Sequence[Cell]


def page(request: HttpRequest, name: str, context: dict[str, Any]) -> HttpResponse:
    """The console's page `controlplane/<name>.html`. What it shows is of this moment: never cached."""
    answer = render(request, f"controlplane/{name}.html", {**admin.site.each_context(request), **context})
    answer["Cache-Control"] = "no-store"
    return answer


def link(address: str, text: str) -> SafeString:
    return format_html('<a class="text-primary-600 dark:text-primary-500" href="{}">{}</a>', address, text)


def moment(at_ms: int) -> str:
    return f"{_utc(at_ms):%Y-%m-%d %H:%M:%S} UTC"


def since(at_ms: int, *, now_ms: int) -> SafeString:
    """How long ago a moment of the past was, with the moment itself behind it."""
    span = (now_ms - at_ms) // 1000
    said = "just now" if span < 1 else f"{_span(span)} ago"
    return format_html('<time datetime="{}" title="{}">{}</time>', _utc(at_ms).isoformat(), moment(at_ms), said)


def _span(seconds: int) -> str:
    """Rounded down: what happened 119 minutes ago did not happen two hours ago."""
    for unit, size, most in (("s", 1, 120), ("min", 60, 7_200), ("h", 3_600, 172_800)):
        if seconds < most:
            return f"{seconds // size} {unit}"
    return f"{seconds // 86_400} days"


def _utc(at_ms: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at_ms / 1000, tz=datetime.UTC)
