"""Bodies of the webhook API. Input is strict: a field that is not known is refused."""

from typing import Any

from rest_framework import serializers

from tenants.api.shapes import Strict, Text, Whole
from tenants.webhooks.models import URL_CHARACTERS_MAX, Attempt, Delivery, Endpoint
from tenants.webhooks.services import FILTERS_MAX, OVERLAP, OVERLAP_MAX

_HOUR = 3600


class EndpointOut(serializers.ModelSerializer[Endpoint]):
    class Meta:
        model = Endpoint
        fields = [
            "id",
            "tenant",
            "url",
            "description",
            "events",
            "enabled",
            "disabled_at",
            "disabled_reason",
            "failures",
            "failing_since",
            "last_success_at",
            "created_at",
            "updated_at",
        ]
        read_only_fields = fields


class EndpointCreated(EndpointOut):
    secret = serializers.CharField(read_only=True, help_text="The signing secret: shown now and never again.")

    class Meta(EndpointOut.Meta):
        fields = [*EndpointOut.Meta.fields, "secret"]
        read_only_fields = fields


class _EndpointFields(Strict):
    url = Text(max_length=URL_CHARACTERS_MAX, help_text="https, a public host, port 443 or 8443.")
    events = serializers.ListField(
        child=Text(max_length=60),
        min_length=1,
        max_length=FILTERS_MAX,
        default=["*"],
        help_text="Event names, families such as `key.*`, or `*`.",
    )
    description = Text(max_length=200, allow_blank=True, default="")


class EndpointIn(_EndpointFields):
    tenant = serializers.UUIDField(required=False, help_text="An operator names it; a key has its own.")


class EndpointPatch(_EndpointFields):
    """Every field may be left out."""


class RotateSecretIn(Strict):
    overlap_hours = Whole(
        min_value=0,
        max_value=int(OVERLAP_MAX.total_seconds()) // _HOUR,
        default=int(OVERLAP.total_seconds()) // _HOUR,
        help_text="How long the secret before signs beside the new one; 0 ends it at once.",
    )


class SecretShown(serializers.Serializer[Any]):
    secret = serializers.CharField(help_text="The signing secret: shown now and never again.")


class DeliveryOut(serializers.ModelSerializer[Delivery]):
    event_id = serializers.UUIDField(read_only=True)
    event = serializers.CharField(source="event.name", read_only=True)

    class Meta:
        model = Delivery
        fields = [
            "id",
            "tenant",
            "endpoint",
            "event_id",
            "event",
            "state",
            "attempts",
            "replays",
            "next_attempt_at",
            "last_attempt_at",
            "finished_at",
            "response_status",
            "response_body",
            "error",
            "latency_ms",
            "created_at",
        ]
        read_only_fields = fields


class AttemptOut(serializers.ModelSerializer[Attempt]):
    class Meta:
        model = Attempt
        fields = [
            "id",
            "tenant",
            "delivery",
            "replay",
            "number",
            "finished_at",
            "response_status",
            "response_body",
            "error",
            "latency_ms",
        ]
        read_only_fields = fields


class ReplayedOut(serializers.Serializer[Any]):
    replayed = serializers.IntegerField(help_text="Dead letters that are sent again.")


class NothingIn(Strict):
    """No fields."""


class KnownEventOut(serializers.Serializer[Any]):
    name = serializers.CharField()
    about = serializers.CharField()
