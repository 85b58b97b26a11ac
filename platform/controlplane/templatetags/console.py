"""Where a page stands: django-unfold's trail of links, in the console's own words.

Used by `unfold/helpers/header_title.html`. Invariant: a row's own name is shown as it was given, never capitalised.
"""

from collections.abc import Sequence
from typing import Any

from django import template
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from controlplane.navigation import Item, group_link, items, place_of

register = template.Library()

Part = dict[str, Any]


@register.filter
def trail(parts: Sequence[Part], request: HttpRequest) -> list[Part]:
    """Group, list or page, and what is open: for the lists of models, and for the console's own pages."""
    if len(parts) > 1 and (place := _place_by_link(str(parts[1].get("link", "")))):
        rest = [{"link": part.get("link"), "title": str(part["title"])} for part in parts[2:]]
        return [*_begin(*place), *rest]
    match = request.resolver_match
    place = place_of(match.url_name or "") if match is not None else None
    if place is None:
        return list(parts)
    beginning, title = _begin(*place), str(parts[-1]["title"]) if parts else ""
    return beginning if title.strip() in ("", place[1].name) else [*beginning, {"title": title}]


@register.filter
def coded(text: str) -> SafeString:
    """Plain text with what stands between backticks as code."""
    parts = str(text).split("`")
    marked = (format_html("<code>{}</code>" if number % 2 else "{}", part) for number, part in enumerate(parts))
    return format_html_join("", "{}", ((part,) for part in marked))


def _begin(group: str, item: Item) -> list[Part]:
    return [{"link": group_link(group), "title": group}, {"link": item.link, "title": item.name}]


def _place_by_link(link: str) -> tuple[str, Item] | None:
    return next(((group, item) for group, item in items() if item.is_list and item.link == link), None)
