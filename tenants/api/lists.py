"""Lists of the management API: keyset pages in OpenAI's shape, and filters that refuse what they do not know.

Pages are by UUIDv7, newest first, so they are stable while rows are added. Invariant: no list is without a bound, and a
query parameter that means nothing is a 400 that names it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.db.models import Q, QuerySet
from rest_framework.filters import BaseFilterBackend
from rest_framework.pagination import BasePagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from contracts.errors import InvalidRequest
from tenants.api.words import TEXT_MAX, read_id, read_instant, read_text, read_whole, unknown_parameter

LIMIT_DEFAULT = 50
LIMIT_MAX = 200
_PAGING = frozenset({"limit", "after"})


@dataclass(frozen=True, slots=True)
class Filter:
    """One query parameter: how it is read, what it selects, how the OpenAPI file describes it."""

    select: Callable[[str, str], Q]  # text, parameter's name; raises InvalidRequest
    schema: dict[str, Any]
    says: str = ""


def by_id(lookup: str, says: str = "") -> Filter:
    """Rows whose `lookup` is this id."""
    return Filter(
        lambda text, param: Q(**{lookup: read_id(text, param=param)}), {"type": "string", "format": "uuid"}, says
    )


def by_text(lookup: str, says: str = "") -> Filter:
    """Rows whose `lookup` is this text."""
    schema = {"type": "string", "minLength": 1, "maxLength": TEXT_MAX}
    return Filter(lambda text, param: Q(**{lookup: read_text(text, param=param)}), schema, says)


def by_instant(lookup: str, says: str = "") -> Filter:
    """Rows whose `lookup` compares to this instant."""
    schema = {"type": "string", "format": "date-time"}
    return Filter(lambda text, param: Q(**{lookup: read_instant(text, param=param)}), schema, says)


def by_choice(choices: dict[str, Callable[[], Q]], says: str = "") -> Filter:
    """Rows of one of the named kinds."""

    def select(text: str, param: str) -> Q:
        if text not in choices:
            raise InvalidRequest(f"One of: {', '.join(choices)}.", param=param)
        return choices[text]()

    return Filter(select, {"type": "string", "enum": list(choices)}, says)


def by_value(lookup: str, values: list[str], says: str = "") -> Filter:
    """Rows whose `lookup` is one of these values."""
    return by_choice({value: lambda value=value: Q(**{lookup: value}) for value in values}, says)  # type: ignore[misc]


class StrictFilters(BaseFilterBackend):
    """The view's `filters`, and nothing else, each at most once."""

    def filter_queryset(self, request: Request, queryset: QuerySet[Any], view: APIView) -> QuerySet[Any]:
        filters: dict[str, Filter] | None = getattr(view, "filters", None)
        if filters is None:  # a route that reads its parameters itself
            return queryset
        known = filters.keys() | _PAGING
        for param, texts in request.query_params.lists():
            if param not in known:
                raise unknown_parameter(param)
            if len(texts) != 1:
                raise InvalidRequest("Name it once.", param=param)
            if param in filters:
                queryset = queryset.filter(filters[param].select(texts[0], param))
        return queryset

    def get_schema_operation_parameters(self, view: APIView) -> list[dict[str, Any]]:
        """For drf-spectacular."""
        filters: dict[str, Filter] = getattr(view, "filters", None) or {}
        return [
            {"name": name, "in": "query", "required": False, "schema": each.schema, "description": each.says}
            for name, each in filters.items()
        ]


class Keyset(BasePagination):
    """`?limit=` and `?after=` (the last id of the page before)."""

    def paginate_queryset(self, queryset: Any, request: Request, view: APIView | None = None) -> list[Any] | None:
        limit = request.query_params.get("limit")
        after = request.query_params.get("after")
        size = LIMIT_DEFAULT if limit is None else read_whole(limit, param="limit", least=1, most=LIMIT_MAX)
        rows = queryset.order_by("-id")
        if after is not None:
            rows = rows.filter(id__lt=read_id(after, param="after"))
        found = list(rows[: size + 1])
        self.has_more = len(found) > size
        return found[:size]

    def get_paginated_response(self, data: Any) -> Response:
        return Response(
            {
                "object": "list",
                "data": data,
                "first_id": data[0]["id"] if data else None,
                "last_id": data[-1]["id"] if data else None,
                "has_more": self.has_more,
            }
        )

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """For drf-spectacular."""
        maybe_id = {"type": ["string", "null"], "format": "uuid"}
        return {
            "type": "object",
            "required": ["object", "data", "first_id", "last_id", "has_more"],
            "properties": {
                "object": {"type": "string", "enum": ["list"]},
                "data": {**schema, "maxItems": LIMIT_MAX},
                "first_id": maybe_id,
                "last_id": maybe_id,
                "has_more": {"type": "boolean"},
            },
        }

    def get_schema_operation_parameters(self, view: APIView) -> list[dict[str, Any]]:
        """For drf-spectacular."""
        return [
            {
                "name": "limit",
                "in": "query",
                "required": False,
                "schema": {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT},
                "description": "Rows of a page.",
            },
            {
                "name": "after",
                "in": "query",
                "required": False,
                "schema": {"type": "string", "format": "uuid"},
                "description": "`last_id` of the page before: the next older rows.",
            },
        ]
