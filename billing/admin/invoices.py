"""Documents in the admin: issued from the period's page, looked at, paid and voided here; adjustments by two people."""

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString
from unfold.decorators import action
from unfold.widgets import UnfoldAdminDecimalFieldWidget, UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from billing.admin.amounts import count_column, facts, money, money_column, percent_column
from billing.admin.asking import asked
from billing.admin.base import ReadOnly, ReadOnlyInline, actor_of
from billing.invoicing.adjust import AdjustmentRefused, approve_adjustment
from billing.invoicing.files import CONTENT_TYPES, build_files, store_files
from billing.invoicing.pay import PaymentRefused, amount_due, record_payment, void_period
from billing.invoicing.sheet import sheet_of
from billing.ledger.journal import LedgerConflict
from billing.models import Adjustment, Invoice, InvoiceLine, Payment
from stores.objects import Objects, ObjectStoreError


class PaymentForm(forms.Form):
    """Money that came in."""

    amount = forms.DecimalField(max_digits=20, decimal_places=9, widget=UnfoldAdminDecimalFieldWidget())
    key = forms.CharField(
        max_length=150,
        help_text="The payment's own id; the same again books nothing.",
        widget=UnfoldAdminTextInputWidget(),
    )


class VoidForm(forms.Form):
    """Why the documents of the whole period are taken back."""

    reason = forms.CharField(max_length=400, widget=UnfoldAdminTextareaWidget())


class LineInline(ReadOnlyInline):
    model = InvoiceLine
    fields = readonly_fields = ["position", "kind", "text", "count", "shown_exact", "shown_amount"]

    count = count_column("tokens")
    shown_exact = money_column("exact", currency="invoice__currency", title="before rounding")
    shown_amount = money_column("amount", currency="invoice__currency")


class PaymentInline(ReadOnlyInline):
    model = Payment
    fields = readonly_fields = ["paid_at", "shown_amount", "key", "recorded_by"]
    shown_amount = money_column("amount", currency="invoice__currency")


@admin.register(Invoice)
class InvoiceAdmin(ReadOnly):
    list_display = ["number", "tenant", "month", "kind", "shown_total", "due", "state", "issued_at", "due_at"]
    list_filter = ["state", "kind", "year", "currency"]
    list_select_related = ["tenant", "period", "period__tenant"]
    search_fields = ["number", "tenant__name"]
    fields = readonly_fields = [
        "number", "kind", "tenant", "period", "usage_revision", "shown_net", "shown_tax", "shown_total", "shown_credit",
        "due", "tax_category", "tax_rate", "tax_note", "sold_by", "bought_by", "issued_at", "issued_by", "due_at",
        "state", "paid_at", "stored",
    ]  # fmt: skip
    empty_hint = (
        "Documents are issued from a sealed billing period: its page has “Issue a document”, `manage.py invoice` does "
        "the same. A period is sealed on its page or by `manage.py close_period`."
    )

    shown_net = money_column("net")
    shown_tax = money_column("tax")
    shown_total = money_column("total")
    shown_credit = money_column("credit_used", title="paid from credit")
    tax_rate = percent_column("tax_rate_ppm", title="tax rate")

    @admin.display(description="month", ordering="period__month")
    def month(self, document: Invoice) -> str:
        return document.period.month

    @admin.display(description="seller")
    def sold_by(self, document: Invoice) -> SafeString:
        return facts(document.seller)

    @admin.display(description="buyer")
    def bought_by(self, document: Invoice) -> SafeString:
        return facts(document.buyer)

    @admin.display(description="stored files")
    def stored(self, document: Invoice) -> SafeString:
        """Each file's place and digest."""
        return facts({name: ", ".join(str(part) for part in at.values()) for name, at in document.files.items()})

    inlines = [LineInline, PaymentInline]
    actions_detail = ["pdf", "csv", "pay", {"title": "More", "items": ["void", "store"]}]

    @admin.display(description="still due")
    def due(self, document: Invoice) -> str:
        return money(amount_due(document), document.currency)

    @action(description="PDF", url_path="pdf", icon="picture_as_pdf")
    def pdf(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self._download(request, object_id, "pdf")

    @action(description="CSV", url_path="csv", icon="csv")
    def csv(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self._download(request, object_id, "csv")

    @action(description="Book a payment", url_path="pay", icon="payments", permissions=["act"])
    def pay(self, request: HttpRequest, object_id: str) -> HttpResponse:
        def run(document: Invoice, data: dict[str, Any]) -> str:
            _, booked = record_payment(
                invoice_id=document.pk, key=data["key"], amount=data["amount"], actor=actor_of(request),
                at=timezone.now(),
            )  # fmt: skip
            return "Booked." if booked else "This payment was booked before."

        return asked(self, request, object_id, title="Book a payment of", form=PaymentForm, run=run, errors=_REFUSED)

    @action(description="Void", url_path="void", icon="block", permissions=["act"])
    def void(self, request: HttpRequest, object_id: str) -> HttpResponse:
        def run(document: Invoice, data: dict[str, Any]) -> str:
            period = void_period(
                period_id=document.period_id, actor=actor_of(request), at=timezone.now(), reason=data["reason"]
            )
            return f"{period} is void; the numbers stay."

        return asked(self, request, object_id, title="Void", form=VoidForm, run=run, errors=_REFUSED)

    @action(description="Store the files", url_path="store", icon="cloud_upload", permissions=["act"])
    def store(self, request: HttpRequest, object_id: str) -> HttpResponse:
        def run(document: Invoice, data: dict[str, Any]) -> str:
            if settings.ENV.s3_url is None:
                raise ObjectStoreError("S3_URL is not set: files have no place")
            store_files(invoice_id=document.pk, objects=Objects.open(settings.ENV.s3_url.get_secret_value()))
            return "Stored."

        return asked(self, request, object_id, title="Store the files of", form=forms.Form, run=run, errors=_REFUSED)

    def _download(self, request: HttpRequest, object_id: str, ending: str) -> HttpResponse:
        """The file as it is made anew from the frozen document: the same bytes as the stored one."""
        document = self.get_object(request, object_id)
        if document is None or not self.has_view_permission(request, document):
            return redirect(reverse("admin:billing_invoice_changelist"))
        body = build_files(sheet_of(document))[ending]
        name = {"Content-Disposition": f'attachment; filename="{document.number}.{ending}"'}
        return HttpResponse(body, content_type=CONTENT_TYPES[ending], headers=name)


_REFUSED = (PaymentRefused, LedgerConflict, ObjectStoreError)


@admin.register(Adjustment)
class AdjustmentAdmin(ReadOnly):
    """Adding proposes; a second person approves; the period's next document says it."""

    list_display = ["period", "shown_amount", "text", "created_by", "approved", "created_at"]
    empty_hint = "Add one to put a refund, goodwill or a fee on a billing period's next document."
    list_select_related = ["period__tenant"]
    fields = ["period", "amount", "text"]
    actions_detail = ["approve"]

    shown_amount = money_column("amount", currency="period__currency")

    @admin.display(description="approved by", ordering="approved_by")
    def approved(self, adjustment: Adjustment) -> str:
        return adjustment.approved_by or "nobody yet"

    def has_add_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("billing.add_adjustment"))

    def save_model(self, request: HttpRequest, obj: Adjustment, form: Any, change: bool) -> None:  # noqa: FBT001
        obj.created_by = actor_of(request)
        super().save_model(request, obj, form, change)
        messages.info(request, "It counts once somebody else approves it.")

    @action(description="Approve", url_path="approve", icon="verified", permissions=["act"])
    def approve(self, request: HttpRequest, object_id: str) -> HttpResponse:
        def run(adjustment: Adjustment, data: dict[str, Any]) -> str:
            approve_adjustment(adjustment_id=adjustment.pk, actor=actor_of(request))
            return "Approved: the period's next document says it."

        refused = (AdjustmentRefused,)
        return asked(self, request, object_id, title="Approve", form=forms.Form, run=run, errors=refused)
