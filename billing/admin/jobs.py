"""Background jobs in the admin: what was asked for, by whom, how far it is, and what came of it."""

from django.contrib import admin

from billing.admin.base import ReadOnly
from billing.models import BillingJob, DunningStep, ReceiptKey


@admin.register(BillingJob)
class BillingJobAdmin(ReadOnly):
    list_display = ["kind", "subject", "state", "asked_by", "asked_at", "attempts", "progress", "finished_at"]
    list_filter = ["state", "kind"]
    search_fields = ["subject", "asked_by"]
    fields = readonly_fields = [
        "kind", "subject", "state", "asked_by", "asked_at", "due_at", "attempts", "claimed_by", "claimed_until",
        "progress", "result", "finished_at",
    ]  # fmt: skip


@admin.register(DunningStep)
class DunningStepAdmin(ReadOnly):
    list_display = ["invoice", "level", "due", "told_at"]
    list_select_related = ["invoice"]
    search_fields = ["invoice__number"]


@admin.register(ReceiptKey)
class ReceiptKeyAdmin(ReadOnly):
    list_display = ["key_id", "public_key", "published_at", "retired_at"]
