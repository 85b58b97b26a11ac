"""Webhooks and their deliveries in the operator's console (django-unfold).

Invariant: nothing is saved here but by `tenants.webhooks.services`; a signing secret is shown on the page that answers
its making and nowhere else.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from unfold.admin import TabularInline

from contracts.errors import LimitExceeded
from tenants.admin import SafeAdmin, actor_of, adopt
from tenants.webhooks import selectors, services
from tenants.webhooks.models import Attempt, Delivery, DeliveryState, Endpoint


@admin.register(Endpoint)
class EndpointAdmin(SafeAdmin):
    list_display = ["__str__", "tenant", "standing", "waiting", "dead", "last_success_at", "failing_since"]
    list_filter = ["enabled", "disabled_reason", "tenant"]
    list_select_related = ["tenant"]
    search_fields = ["url", "id", "tenant__name"]
    actions = ["send_test", "switch_on", "switch_off", "replay_dead", "remove"]
    fields = ["tenant", "url", "events", "description"]
    empty_hint = "Where a tenant hears of its events: added here, or by the tenant with `POST /api/v1/webhooks`."

    def get_queryset(self, request: HttpRequest) -> QuerySet[Endpoint]:
        queryset: QuerySet[Endpoint] = super().get_queryset(request)
        return selectors.with_counts(queryset.filter(deleted_at=None))

    def get_readonly_fields(self, request: HttpRequest, obj: Endpoint | None = None) -> list[str]:
        """A webhook stays with its tenant."""
        return ["tenant", "standing", "failures", "failing_since", "last_success_at", "disabled_at"] if obj else []

    def get_fields(self, request: HttpRequest, obj: Endpoint | None = None) -> list[str]:
        """What is known of its health, once it is there."""
        return [*self.fields, *(self.get_readonly_fields(request, obj)[1:])]

    def has_delete_permission(self, request: HttpRequest, obj: Endpoint | None = None) -> bool:
        """Taken away by the action, so that its event is written and its history stays."""
        return False

    def save_model(self, request: HttpRequest, obj: Endpoint, form: ModelForm[Endpoint], change: Any) -> None:
        if change:
            changes = {name: form.cleaned_data[name] for name in form.changed_data}
            if changes:
                adopt(obj, services.change_endpoint(endpoint=obj, changes=changes, actor=actor_of(request)))
            return
        endpoint, secret = services.create_endpoint(**form.cleaned_data, actor=actor_of(request))
        adopt(obj, endpoint)
        request.META["weir.plaintext"] = secret

    def response_add(self, request: HttpRequest, obj: Endpoint, post_url_continue: str | None = None) -> HttpResponse:
        """Shows the secret in the answer itself: not in a message, which would travel in a cookie."""
        context = {
            **self.admin_site.each_context(request),
            "title": "Webhook created",
            "endpoint": obj,
            "plaintext": request.META.pop("weir.plaintext"),
        }
        response = TemplateResponse(request, "webhooks/secret_created.html", context)
        response["Cache-Control"] = "no-store"
        return response

    @admin.display(description="state")
    def standing(self, endpoint: Endpoint) -> str:
        if not endpoint.enabled:
            return f"off: {endpoint.get_disabled_reason_display()}"
        return f"failing ({endpoint.failures} in a row)" if endpoint.failures else "on"

    @admin.display(description="waiting", ordering="waiting_now")
    def waiting(self, endpoint: Any) -> int:
        return int(endpoint.waiting_now)

    @admin.display(description="dead letters", ordering="dead_now")
    def dead(self, endpoint: Any) -> int:
        return int(endpoint.dead_now)

    @admin.action(description="Send a test event", permissions=["change"])
    def send_test(self, request: HttpRequest, queryset: QuerySet[Endpoint]) -> None:
        self._each(request, queryset, lambda endpoint: services.send_test(endpoint=endpoint), "test events are sent")

    @admin.action(description="Switch on again", permissions=["change"])
    def switch_on(self, request: HttpRequest, queryset: QuerySet[Endpoint]) -> None:
        actor = actor_of(request)
        self._each(request, queryset, lambda row: services.enable(endpoint=row, actor=actor), "webhooks are on")

    @admin.action(description="Switch off: what waits becomes dead letters", permissions=["change"])
    def switch_off(self, request: HttpRequest, queryset: QuerySet[Endpoint]) -> None:
        actor = actor_of(request)
        self._each(request, queryset, lambda row: services.disable(endpoint=row, actor=actor), "webhooks are off")

    @admin.action(description="Replay every dead letter", permissions=["change"])
    def replay_dead(self, request: HttpRequest, queryset: QuerySet[Endpoint]) -> None:
        actor = actor_of(request)
        self._each(
            request, queryset, lambda row: services.replay_dead(endpoint=row, actor=actor), "webhooks are replayed"
        )

    @admin.action(description="Delete", permissions=["change"])
    def remove(self, request: HttpRequest, queryset: QuerySet[Endpoint]) -> None:
        actor = actor_of(request)
        self._each(
            request, queryset, lambda row: services.delete_endpoint(endpoint=row, actor=actor), "webhooks deleted"
        )

    def _each(self, request: HttpRequest, queryset: QuerySet[Endpoint], act: Any, what: str) -> None:
        _each(self, request, queryset, act, what)


class HistoryInline(TabularInline):  # type: ignore[misc] # unfold has no types
    """Each try and what came of it, newest first."""

    model = Attempt
    verbose_name_plural = "attempts"
    fields = readonly_fields = ["finished_at", "replay", "number", "response_status", "error", "latency_ms"]
    extra = 0
    can_delete = False

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Delivery)
class DeliveryAdmin(SafeAdmin):
    list_display = ["created_at", "event_name", "endpoint", "tenant", "state", "attempts", "response_status", "error"]
    list_filter = ["state", "tenant", "event__name"]
    list_select_related = ["event", "endpoint", "tenant"]
    search_fields = ["id", "event__id", "endpoint__id"]
    show_full_result_count = False
    actions = ["replay"]
    inlines = [HistoryInline]
    empty_hint = "Written for each event that a webhook asks for; the webhook's action “Send a test event” makes one."

    def get_queryset(self, request: HttpRequest) -> QuerySet[Delivery]:
        queryset: QuerySet[Delivery] = super().get_queryset(request)
        return queryset.defer("response_body", "event__body")

    @admin.display(description="event", ordering="event__name")
    def event_name(self, delivery: Delivery) -> str:
        return delivery.event.name

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Delivery | None = None) -> bool:
        """A delivery is never edited; the action asks for the permission itself."""
        return obj is None and bool(super().has_change_permission(request))

    def has_delete_permission(self, request: HttpRequest, obj: Delivery | None = None) -> bool:
        return False

    @admin.action(description="Replay: send once more", permissions=["change"])
    def replay(self, request: HttpRequest, queryset: QuerySet[Delivery]) -> None:
        actor = actor_of(request)
        finished = queryset.exclude(state=DeliveryState.PENDING)
        _each(
            self, request, finished, lambda row: services.replay(delivery=row, actor=actor), "deliveries are replayed"
        )


def _each(page: SafeAdmin, request: HttpRequest, queryset: QuerySet[Any], act: Any, what: str) -> None:
    """One by one; what a service refuses is said on the page, the others are done."""
    done = 0
    for row in queryset:
        try:
            act(row)
            done += 1
        except ValidationError as error:
            page.message_user(request, f"{row}: {' '.join(error.messages)}", messages.ERROR)
        except LimitExceeded as error:
            page.message_user(request, f"{row}: {error.message}", messages.ERROR)
    page.message_user(request, f"{done} {what}.", messages.SUCCESS)
