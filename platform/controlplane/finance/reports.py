"""GET /api/v1/finance/…: what usage brought in and took, what moved, what was wasted, who owes what. Operators only.

Invariants: amounts are exact decimal texts; a page's cursor belongs to its question; a parameter that means nothing is
refused by name.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import Any, ClassVar

import orjson
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from billing import selectors
from billing.clickhouse.finance import DIMENSIONS, PAGE_MAX, FinanceQuestion
from billing.invoicing.receivables import receivables
from billing.models import Invoice
from billing.reporting.finance import movers, read_finance, read_wasted
from billing.reporting.table import as_csv, as_parquet, plain, rows_of
from contracts.errors import InvalidRequest, Unavailable
from contracts.money import nano_from_decimal, text_from_nano
from stores.clickhouse import ClickHouseError
from tenants.api.routes import Route
from tenants.api.words import read_id, read_instant, read_whole, unknown_parameter
from tenants.roles import Action

SLO_MS_MAX = 3_600_000
PAGE_DEFAULT = 1_000
_SPAN = (
    OpenApiParameter("from", OpenApiTypes.DATETIME, required=True),
    OpenApiParameter("to", OpenApiTypes.DATETIME, required=True, description="First moment after the span."),
    OpenApiParameter("by", str, description=f"Groups, comma between them: some of {', '.join(DIMENSIONS)}."),
    OpenApiParameter("zone", str, description="Whose days and hours; UTC unless named."),
    OpenApiParameter("tenant", OpenApiTypes.UUID),
)
_USAGE = (
    *_SPAN,
    OpenApiParameter("slo_ttft_ms", int, description="The time to the first token promised; 1000 unless named."),
    OpenApiParameter("sequence_hour", str, description="Cost of an hour of one sequence; gives cost and margin."),
    OpenApiParameter("rows", int, description=f"Rows of a page; {PAGE_DEFAULT} unless named, {PAGE_MAX} at most."),
    OpenApiParameter("after", str, description="`next_after` of the page before."),
    OpenApiParameter("as", str, enum=["json", "csv", "parquet"]),
)
_LIST = {200: OpenApiTypes.OBJECT}


class FinanceRoute(Route[Invoice]):
    """Nothing here is a tenant's: margins are the operator's own."""

    operators = "operators of finance"
    queryset = Invoice.objects.all()
    needs: ClassVar[Mapping[str, Action]] = dict.fromkeys(("usage", "wasted", "moved", "owed"), Action.OPERATE)

    @extend_schema(
        summary="Revenue, engine time, margin, savings and latency, in groups", parameters=[*_USAGE], responses=_LIST
    )
    def usage(self, request: Request) -> HttpResponseBase:
        given = _given(request, _USAGE)
        price = _price(given.get("sequence_hour"))
        try:
            question = _question(given)
            page = read_finance(selectors.usage_reader(), question)
        except ClickHouseError as error:
            raise _away() from error
        rows = rows_of(page.lines, by=question.by, sequence_hour_nano=price)
        after = None if page.next_after is None else _cursor(page.next_after)
        match given.get("as", "json"):
            case "json":
                return _listed([plain(row) for row in rows], next_after=after)
            case "csv":
                return _file(as_csv(rows), "text/csv; charset=utf-8", after)
            case "parquet":
                return _file(as_parquet(rows), "application/vnd.apache.parquet", after)
        raise InvalidRequest("One of: json, csv, parquet.", param="as")

    @extend_schema(summary="Attempts that no billed request came of", parameters=[*_SPAN], responses=_LIST)
    def wasted(self, request: Request) -> Response:
        question = _question(_given(request, _SPAN))
        try:
            lines = read_wasted(selectors.usage_reader(), question)
        except ClickHouseError as error:
            raise _away() from error
        names = question.attempt_groups
        return _listed(
            [
                {**dict(zip(names, line.groups, strict=True)), "attempts": line.attempts, "engine_us": line.engine_us}
                for line in lines
            ]
        )

    @extend_schema(
        summary="Revenue against as long a span before, the largest change first",
        parameters=[*_SPAN],
        responses=_LIST,
    )
    def moved(self, request: Request) -> Response:
        question = replace(_question(_given(request, _SPAN)), limit=PAGE_MAX)
        span = question.end_ms - question.start_ms
        earlier = replace(question, start_ms=max(0, question.start_ms - span), end_ms=question.start_ms)
        try:
            pages = [read_finance(selectors.usage_reader(), each) for each in (earlier, question)]
        except ClickHouseError as error:
            raise _away() from error
        if any(page.next_after for page in pages):
            raise InvalidRequest(f"more than {PAGE_MAX} groups: ask for fewer", param="by")
        return _listed(
            [
                {
                    **dict(zip(question.by, each.groups, strict=True)),
                    "currency": each.currency,
                    "before": text_from_nano(each.before_nano),
                    "now": text_from_nano(each.now_nano),
                    "difference": text_from_nano(each.difference_nano),
                }
                for each in movers(before=pages[0].lines, now=pages[1].lines)
            ]
        )

    @extend_schema(summary="Who owes what since when, and what is not billed yet", responses=_LIST)
    def owed(self, request: Request) -> Response:
        _given(request, ())
        return _listed(
            [
                {
                    "tenant": str(row.tenant_id),
                    "currency": row.currency,
                    **{name: _text(amount) for name, amount in row.aged.items()},
                    "unbilled": _text(row.unbilled),
                    "receivable_in_ledger": _text(row.ledger),
                    "reconciles": row.reconciles,
                }
                for row in receivables(at=timezone.now())
            ]
        )


def _given(request: Request, known: Sequence[OpenApiParameter]) -> dict[str, str]:
    """Each parameter once. Raises InvalidRequest for one that is not known."""
    names, given = {each.name for each in known}, {}
    for name, texts in request.query_params.lists():
        if name not in names:
            raise unknown_parameter(name)
        if len(texts) != 1:
            raise InvalidRequest("Name it once.", param=name)
        given[name] = str(texts[0])
    return given


def _question(given: Mapping[str, str]) -> FinanceQuestion:
    for name in ("from", "to"):
        if name not in given:
            raise InvalidRequest("This parameter is required.", param=name)
    slo_ms = read_whole(given.get("slo_ttft_ms", "1000"), param="slo_ttft_ms", least=1, most=SLO_MS_MAX)
    limit = read_whole(given.get("rows", str(PAGE_DEFAULT)), param="rows", least=1, most=PAGE_MAX)
    return FinanceQuestion(
        start_ms=round(read_instant(given["from"], param="from").timestamp() * 1_000),
        end_ms=round(read_instant(given["to"], param="to").timestamp() * 1_000),
        by=tuple(filter(None, given.get("by", "tenant").split(","))),
        zone=given.get("zone", "UTC"),
        tenant_id=str(read_id(given["tenant"], param="tenant")) if "tenant" in given else "",
        slo_ttft_us=slo_ms * 1_000,
        limit=limit,
        after=_read_cursor(given["after"]) if "after" in given else None,
    )


def _cursor(groups: Sequence[str]) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(list(groups))).decode()


def _read_cursor(text: str) -> tuple[str, ...]:
    try:
        groups = orjson.loads(base64.b64decode(text, altchars=b"-_", validate=True))
    except (binascii.Error, ValueError):
        groups = None
    if not isinstance(groups, list) or not all(isinstance(each, str) and "\0" not in each for each in groups):
        raise InvalidRequest("after is not a cursor of this list", param="after")
    return tuple(groups)


def _price(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        price = nano_from_decimal(Decimal(text))
    except (InvalidOperation, ValueError) as error:
        raise InvalidRequest("An amount, like 0.35.", param="sequence_hour") from error
    if not 0 <= price <= 10**15:
        raise InvalidRequest("An amount of a million at most.", param="sequence_hour")
    return price


def _listed(rows: Sequence[Mapping[str, Any]], *, next_after: str | None = None) -> Response:
    return Response({"object": "list", "data": rows, "next_after": next_after, "has_more": next_after is not None})


def _file(body: bytes, content_type: str, after: str | None) -> HttpResponse:
    """A page as a file; the next page's cursor is in a header."""
    headers = {"Content-Disposition": "attachment", "X-Content-Type-Options": "nosniff"}
    return HttpResponse(
        body, content_type=content_type, headers=headers | ({"Weir-Next-After": after} if after else {})
    )


def _text(amount: Decimal) -> str:
    return text_from_nano(nano_from_decimal(amount))


def _away() -> Unavailable:
    return Unavailable("The usage tables do not answer right now.")
