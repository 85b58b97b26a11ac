"""Background jobs in the admin: what was asked for, by whom, how far it is, and what came of it."""

from typing import Any
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.http import HttpRequest

from billing.admin.amounts import money_column
from billing.admin.base import ReadOnly
from billing.models import BillingJob, BillingPeriod, DunningStep, ReceiptKey


@admin.register(BillingJob)
class BillingJobAdmin(ReadOnly):
    list_display = ["kind", "about", "state", "asked_by", "asked_at", "attempts", "progress", "finished_at"]
    list_filter = ["state", "kind"]
    search_fields = ["subject", "asked_by"]
    fields = readonly_fields = [
        "kind", "about", "state", "asked_by", "asked_at", "due_at", "attempts", "claimed_by", "claimed_until",
        "progress", "result", "finished_at",
    ]  # fmt: skip
    empty_hint = (
        "Asked for on the pages of billing periods (seal, look for late usage), and by the clock: the close of what is "
        "over, its documents, reminders."
    )

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """With the names of the periods that the page's jobs are about, in one query."""
        listed: ChangeList = super().get_changelist_instance(request)
        jobs = list(listed.result_list)
        names = _names(jobs)
        for job in jobs:
            job.about_name = names.get(job.subject)
        listed.result_list = jobs  # type: ignore[assignment]
        return listed

    @admin.display(description="about", ordering="subject")
    def about(self, job: Any) -> str:
        """The period's name; jobs without one are about all."""
        named = job.about_name if hasattr(job, "about_name") else _names([job]).get(job.subject)
        return named or job.subject or "all"


def _names(jobs: list[BillingJob]) -> dict[str, str]:
    keys = [key for job in jobs if (key := _uuid(job.subject)) is not None]
    return {str(found.pk): str(found) for found in BillingPeriod.objects.filter(pk__in=keys).select_related("tenant")}


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


@admin.register(DunningStep)
class DunningStepAdmin(ReadOnly):
    list_display = ["invoice", "tenant", "step", "shown_due", "told_at"]
    list_select_related = ["invoice", "tenant"]
    search_fields = ["invoice__number", "tenant__name"]
    fields = readonly_fields = ["invoice", "tenant", "step", "shown_due", "told_at"]
    empty_hint = "Written when a document is overdue, by an hourly job; `manage.py receivables` lists what is due."

    shown_due = money_column("due", currency="invoice__currency", title="still due")

    @admin.display(description="step", ordering="level")
    def step(self, reminder: DunningStep) -> str:
        return {1: "reminder", 2: "second reminder", 3: "last notice"}.get(reminder.level, f"step {reminder.level}")


@admin.register(ReceiptKey)
class ReceiptKeyAdmin(ReadOnly):
    list_display = ["key_id", "public_key", "published_at", "retired_at"]
    empty_hint = "Made by `manage.py receipt_key`, where receipts are signed."
