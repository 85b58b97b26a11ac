"""GET /api/v1/invoices: issued documents with their lines, and their files. Tenants see their own, operators all.

Read only. Invariants: amounts are exact decimal texts; a file is the one that was stored when the document was issued,
checked against the document's own hash, or, before it is stored, made from the same frozen rows.
"""

from typing import Any

from django.conf import settings
from django.db.models import QuerySet
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_field, extend_schema_view
from rest_framework import mixins, serializers
from rest_framework.decorators import action
from rest_framework.request import Request

from billing.invoicing.files import CONTENT_TYPES, FileDiffers, read_file
from billing.models import DocumentKind, DocumentState, Invoice, InvoiceLine
from contracts.errors import InvalidRequest, Unavailable
from contracts.money import nano_from_decimal, text_from_nano
from stores.objects import Objects, ObjectStoreError
from tenants.api.lists import by_instant, by_text, by_value
from tenants.api.routes import OF_TENANT, Route
from tenants.api.words import unknown_parameter
from tenants.roles import Action


@extend_schema_field(OpenApiTypes.STR)
class Amount(serializers.Field[Any, Any, str, Any]):
    """Exact decimal text."""

    def to_representation(self, value: Any) -> str:
        return text_from_nano(nano_from_decimal(value))


class InvoiceLineOut(serializers.ModelSerializer[InvoiceLine]):
    unit = serializers.SerializerMethodField(help_text="Price of one token; null where the line is not of tokens.")
    exact = Amount(help_text="Before rounding.")
    amount = Amount()

    class Meta:
        model = InvoiceLine
        fields = ["position", "kind", "text", "tokens", "unit", "exact", "amount"]
        read_only_fields = fields

    def get_unit(self, line: InvoiceLine) -> str | None:
        return None if line.unit_nano is None else text_from_nano(line.unit_nano)


class InvoiceOut(serializers.ModelSerializer[Invoice]):
    month = serializers.CharField(source="period.month")
    zone = serializers.CharField(source="period.zone")
    period_start = serializers.DateTimeField(source="period.starts_at")
    period_end = serializers.DateTimeField(source="period.ends_at", help_text="First moment after the period.")
    net, tax, total, credit_used, paid = Amount(), Amount(), Amount(), Amount(), Amount()

    class Meta:
        model = Invoice
        fields = [
            "id", "tenant_id", "number", "kind", "state", "month", "zone", "period_start", "period_end", "currency",
            "net", "tax", "total", "credit_used", "paid", "issued_at", "due_at", "paid_at", "seal_head",
        ]  # fmt: skip
        read_only_fields = fields


class InvoiceDetailOut(InvoiceOut):
    lines = InvoiceLineOut(many=True)

    class Meta(InvoiceOut.Meta):
        fields = [*InvoiceOut.Meta.fields, "lines"]
        read_only_fields = fields


@extend_schema_view(
    list=extend_schema(summary="List issued documents, newest first"),
    retrieve=extend_schema(summary="Read a document with its lines", responses=InvoiceDetailOut),
)
class InvoiceRoute(mixins.ListModelMixin, Route[Invoice]):
    serializer_class = InvoiceOut
    queryset = Invoice.objects.all()
    needs = {"list": Action.READ, "retrieve": Action.READ, "file": Action.READ}
    filters = {
        "tenant": OF_TENANT,
        "number": by_text("number"),
        "month": by_text("period__month", "As `2026-11`."),
        "kind": by_value("kind", DocumentKind.values),
        "state": by_value("state", DocumentState.values),
        "since": by_instant("issued_at__gte", "Issued from this instant on."),
        "until": by_instant("issued_at__lt", "Issued before this instant."),
    }

    def get_queryset(self) -> QuerySet[Invoice]:
        return Invoice.objects.filter(self.mine()).select_related("period").prefetch_related("lines")

    def shown(self, row: Invoice) -> dict[str, Any]:
        return dict(InvoiceDetailOut(row).data)

    @extend_schema(
        summary="Download a document's file",
        parameters=[OpenApiParameter("as", str, enum=list(CONTENT_TYPES), description="`pdf` unless named.")],
        responses={(200, kind.partition(";")[0]): OpenApiTypes.BINARY for kind in CONTENT_TYPES.values()},
    )
    @action(detail=True, methods=["get"])
    def file(self, request: Request, pk: Any = None) -> HttpResponse:
        ending = request.query_params.get("as", "pdf")
        if ending not in CONTENT_TYPES:
            raise InvalidRequest(f"One of: {', '.join(CONTENT_TYPES)}.", param="as")
        for unknown in request.query_params.keys() - {"as"}:
            raise unknown_parameter(unknown)
        document = get_object_or_404(self.get_queryset(), pk=pk)
        s3_url = settings.ENV.s3_url
        objects = None if s3_url is None else Objects.open(s3_url.get_secret_value())
        try:
            body = read_file(document, ending=ending, objects=objects)
        except (ObjectStoreError, FileDiffers) as error:
            raise Unavailable("The file cannot be read right now; the document stands.") from error
        return HttpResponse(
            body,
            content_type=CONTENT_TYPES[ending],
            headers={
                "Content-Disposition": f'attachment; filename="{document.number}.{ending}"',
                "X-Content-Type-Options": "nosniff",
            },
        )
