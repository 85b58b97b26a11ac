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
    return f"{datetime.datetime.fromtimestamp(at_ms / 1000, tz=datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"
