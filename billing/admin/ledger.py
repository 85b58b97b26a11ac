"""The ledger in the admin: for looking only."""

from decimal import Decimal
from typing import Any

from django.apps import apps
from django.contrib import admin
from django.db import models
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest

from billing.admin.amounts import count_column, money, money_column
from billing.admin.base import ReadOnly, ReadOnlyInline
from billing.models import LedgerAccount, LedgerEntry, LedgerTransaction, UsagePosting


class EntryInline(ReadOnlyInline):
    """Debit is positive: who owes or holds more; credit negative."""

    model = LedgerEntry
    fields = readonly_fields = ["account", "whose", "shown_amount"]

    shown_amount = money_column("amount", currency="account__currency")

    def get_queryset(self, request: HttpRequest) -> QuerySet[LedgerEntry]:
        found: QuerySet[LedgerEntry] = super().get_queryset(request).select_related("account__tenant")
        return found

    @admin.display(description="tenant")
    def whose(self, entry: LedgerEntry) -> str:
        return "the platform" if entry.account.tenant is None else str(entry.account.tenant)


@admin.register(LedgerTransaction)
class LedgerTransactionAdmin(ReadOnly):
    list_display = ["posted_at", "tenant", "description", "amount", "id"]
    list_filter = ["currency"]
    search_fields = ["idempotency_key", "id", "entries__account__tenant__name"]
    fields = readonly_fields = ["posted_at", "tenant", "description", "amount", "idempotency_key", "id"]
    inlines = [EntryInline]
    empty_hint = "The settler posts usage a second or two after requests end; credit, invoices and payments post too."

    def get_queryset(self, request: HttpRequest) -> QuerySet[LedgerTransaction]:
        found: QuerySet[LedgerTransaction] = super().get_queryset(request).prefetch_related("entries__account__tenant")
        return found

    @admin.display(description="tenant")
    def tenant(self, transaction: LedgerTransaction) -> str:
        accounts = [entry.account for entry in transaction.entries.all()]
        return ", ".join(sorted({str(account.tenant) for account in accounts if account.tenant is not None})) or "-"

    @admin.display(description="amount")
    def amount(self, transaction: LedgerTransaction) -> str:
        """The sum of its debits, which is that of its credits."""
        debits = (entry.amount for entry in transaction.entries.all() if entry.amount > 0)
        return money(sum(debits, Decimal(0)), transaction.currency)


@admin.register(LedgerAccount)
class LedgerAccountAdmin(ReadOnly):
    list_display = ["kind", "whose", "balance"]
    list_filter = ["kind", "currency"]
    list_select_related = ["tenant"]
    search_fields = ["tenant__name"]
    fields = readonly_fields = ["kind", "whose", "balance", "id"]
    empty_hint = "An account is opened with the first booking on it."

    def get_queryset(self, request: HttpRequest) -> QuerySet[LedgerAccount]:
        found: QuerySet[LedgerAccount] = super().get_queryset(request).annotate(total=models.Sum("entries__amount"))
        return found

    @admin.display(description="tenant", ordering="tenant__name")
    def whose(self, account: LedgerAccount) -> str:
        return "the platform" if account.tenant is None else str(account.tenant)

    @admin.display(description="balance (debit positive)", ordering="total")
    def balance(self, account: Any) -> str:
        return money(account.total or Decimal(0), account.currency)


@admin.register(UsagePosting)
class UsagePostingAdmin(ReadOnly):
    """Newest first. The tenant is kept by value: its name is looked up for the page's rows."""

    list_display = ["request_id", "tenant", "shown_amount", "prompt", "cached", "completion", "billed_at"]
    list_filter = ["currency"]
    search_fields = ["=request_id", "=tenant_id"]
    search_help_text = "A request's or a tenant's whole id."
    ordering = ["-id"]
    show_full_result_count = False
    fields = readonly_fields = [
        "request_id", "revision", "tenant", "shown_amount", "prompt", "cached", "completion", "billed_at",
        "transaction",
    ]  # fmt: skip
    empty_hint = "The settler posts each metered request, a second or two after it ended."

    shown_amount = money_column("amount")
    prompt = count_column("prompt_tokens")
    cached = count_column("cached_tokens", title="of them cached")
    completion = count_column("completion_tokens")

    def get_queryset(self, request: HttpRequest) -> QuerySet[UsagePosting]:
        found: QuerySet[UsagePosting] = super().get_queryset(request)
        name = apps.get_model("tenants.tenant").objects.filter(id=OuterRef("tenant_id")).values("name")[:1]
        return found.annotate(tenant_name=Subquery(name))

    @admin.display(description="tenant")
    def tenant(self, posting: Any) -> str:
        return str(posting.tenant_name or posting.tenant_id)
