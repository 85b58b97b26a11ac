"""Engine configurations in the console: a version is added, never changed; what runs is shown beside it."""

import json
from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from redis.exceptions import RedisError
from unfold.admin import ModelAdmin, TabularInline

from contracts.wire import WireError
from controlplane.engineconfig.cards import cards_of
from controlplane.engineconfig.document import ConfigurationRefused, read_document
from controlplane.engineconfig.running import Comparison, compare
from controlplane.engineconfig.services import active_of, add_version
from controlplane.models import EngineConfig, EngineConfigEvent


class EngineConfigForm(forms.ModelForm):  # type: ignore[type-arg]
    """The document is checked as the command checks it."""

    class Meta:
        model = EngineConfig
        fields = ["pool", "document", "note"]

    def clean_document(self) -> Any:
        raw = self.cleaned_data["document"]
        if not isinstance(raw, dict):
            raise forms.ValidationError("A JSON object.")
        try:
            read_document(raw)
        except ConfigurationRefused as error:
            raise forms.ValidationError(str(error)) from error
        return raw

    def clean(self) -> dict[str, Any]:
        data: dict[str, Any] = super().clean() or {}
        newest = EngineConfig.objects.filter(pool=data.get("pool", "")).order_by("-version").first()
        if newest is not None and newest.document == data.get("document"):
            raise forms.ValidationError(f"Version {newest.version} says the same.")
        return data


class EventInline(TabularInline):  # type: ignore[misc]
    model = EngineConfigEvent
    fields = readonly_fields = ("at", "kind", "engine_version", "text", "by")
    extra = 0
    can_delete = False

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(EngineConfig)
class EngineConfigAdmin(ModelAdmin):  # type: ignore[misc]
    form = EngineConfigForm
    inlines = [EventInline]
    list_display = ("pool", "version", "is_active", "created_by", "created_at", "note")
    list_filter = ("pool",)
    empty_hint = "What a pool's engines are to run: add a version here, or by `manage.py engine_config`."
    readonly_fields = ("version", "digest", "shown_document", "runs", "created_by", "created_at")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return ("pool", "document", "note")
        return ("pool", "version", "note", "created_by", "created_at", "digest", "shown_document", "runs")

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:  # noqa: FBT001 - Django's
        """The next version. Its row is the service's own; the admin goes on with it."""
        made = add_version(pool=obj.pool, raw=obj.document, note=obj.note, by=f"user:{request.user.get_username()}")
        obj.pk, obj.version, obj.digest = made.pk, made.version, made.digest

    @admin.display(boolean=True, description="active")
    def is_active(self, config: EngineConfig) -> bool:
        return active_of(config.pool) == config

    @admin.display(description="document")
    def shown_document(self, config: EngineConfig) -> SafeString:
        return format_html("<pre>{}</pre>", json.dumps(config.document, indent=2, sort_keys=True))

    @admin.display(description="what runs")
    def runs(self, config: EngineConfig) -> SafeString:
        """Field by field against the model card of the pool's engines."""
        try:
            cards = cards_of(config.pool)
        except (RedisError, WireError):
            return format_html("Redis does not answer; what runs cannot be shown.")
        if not cards:
            return format_html("No engine of this pool has ever started.")
        document = read_document(config.document)
        return format_html_join("", "<p>{}: {}</p>", ((card.model, _words(compare(document, card))) for card in cards))


def _words(found: Comparison) -> str:
    apart = "; ".join(f"{one.field} is {one.running}, not {one.configured}" for one in found.different)
    same = ", ".join(found.same) or "nothing"
    return f"{apart or 'no difference'}. Read back and the same: {same}. Not read back: {', '.join(found.unread)}."
