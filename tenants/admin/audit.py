"""The audit trail: who did what to whom, what it was before and after, in a person's words."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from unfold.admin import ModelAdmin

from tenants.admin.changes import read_changes
from tenants.admin.subjects import name_subjects, subject_link
from tenants.models import AuditEntry, Tenant


@admin.register(AuditEntry)
class AuditEntryAdmin(ModelAdmin):  # type: ignore[misc] # unfold has no types
    list_display = ["happened_at", "name", "tenant", "about", "actor", "address"]
    list_filter = ["name"]
    search_fields = ["subject", "actor", "tenant_id"]
    show_full_result_count = False
    fields = readonly_fields = ["happened_at", "name", "tenant", "subject_named", "actor", "address", "changes", "id"]
    empty_hint = "What is done in the console, by the API and by commands is written here, a second or two later."

    def get_queryset(self, request: HttpRequest) -> QuerySet[AuditEntry]:
        queryset: QuerySet[AuditEntry] = super().get_queryset(request)
        own = Tenant.objects.filter(id=OuterRef("tenant_id"))
        return queryset.annotate(
            tenant_name=Subquery(own.values("name")[:1]), tenant_currency=Subquery(own.values("currency")[:1])
        )

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """With the names of what the page's entries are about: a query for each kind of thing, not for each entry."""
        listed: ChangeList = super().get_changelist_instance(request)
        entries = list(listed.result_list)
        names = name_subjects([entry.subject for entry in entries])
        for entry in entries:
            entry.about_name = names[entry.subject]
        listed.result_list = entries  # type: ignore[assignment]
        return listed

    @admin.display(description="tenant")
    def tenant(self, entry: Any) -> str:
        return str(entry.tenant_name or "-")

    @admin.display(description="about", ordering="subject")
    def about(self, entry: Any) -> str:
        return str(entry.about_name)

    @admin.display(description="about")
    def subject_named(self, entry: AuditEntry) -> SafeString:
        named = name_subjects([entry.subject])[entry.subject]
        address = subject_link(entry.subject)
        if address is None:
            return format_html("{}<br>{}", named, entry.subject)
        link = '<a class="text-primary-600 dark:text-primary-500" href="{}">{}</a><br>{}'
        return format_html(link, address, named, entry.subject)

    @admin.display(description="what changed")
    def changes(self, entry: Any) -> SafeString:
        """Field by field; what stayed as it was is named below."""
        found = read_changes(entry.before, entry.after, currency=entry.tenant_currency)
        if not found.changed:
            return format_html("{}", "Nothing: both sides say the same." if found.same else "Nothing is recorded.")
        rows = format_html_join(
            "", "<tr><th>{}</th><td>{}</td><td>{}</td></tr>", ((c.field, c.before, c.after) for c in found.changed)
        )
        same = format_html('<p class="mt-2">As before: {}.</p>', ", ".join(found.same)) if found.same else ""
        return format_html(
            '<table class="weir-table"><tr><th>Field</th><th>Before</th><th>After</th></tr>{}</table>{}', rows, same
        )

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: AuditEntry | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: AuditEntry | None = None) -> bool:
        return False
