"""The ledger in the admin: for looking only."""

from decimal import Decimal
from typing import Any

from django.contrib import admin
from django.db import models
from django.db.models import QuerySet
from django.http import HttpRequest

from billing.admin.base import ReadOnly, ReadOnlyInline
from billing.models import LedgerAccount, LedgerEntry, LedgerTransaction, UsagePosting


class EntryInline(ReadOnlyInline):
    model = LedgerEntry
    fields = ["account", "amount"]
    readonly_fields = ["account", "amount"]


@admin.register(LedgerTransaction)
class LedgerTransactionAdmin(ReadOnly):
    list_display = ["posted_at", "description", "currency", "id"]
    list_filter = ["currency"]
    search_fields = ["idempotency_key", "id"]
    inlines = [EntryInline]

    def get_queryset(self, request: HttpRequest) -> QuerySet[LedgerTransaction]:
        found: QuerySet[LedgerTransaction] = super().get_queryset(request).prefetch_related("entries__account")
        return found


@admin.register(LedgerAccount)
class LedgerAccountAdmin(ReadOnly):
    list_display = ["kind", "tenant", "currency", "balance"]
    list_filter = ["kind", "currency"]
    list_select_related = ["tenant"]
    search_fields = ["tenant__name"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[LedgerAccount]:
        found: QuerySet[LedgerAccount] = super().get_queryset(request).annotate(total=models.Sum("entries__amount"))
        return found

    @admin.display(description="Balance (debit positive)", ordering="total")
    def balance(self, account: Any) -> str:
        return f"{account.total or Decimal(0):.9f}"


@admin.register(UsagePosting)
class UsagePostingAdmin(ReadOnly):
    list_display = ["request_id", "tenant_id", "amount", "currency", "billed_at"]
    list_filter = ["currency"]
    search_fields = ["=request_id", "=tenant_id"]
    show_full_result_count = False
