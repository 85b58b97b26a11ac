"""Bodies of the management API. Input is strict: a field that is not known is refused, never dropped."""

from typing import Any

from rest_framework import serializers

from tenants.models import METRICS, SCOPES, ApiKey, AuditEntry, KeyScope, LimitSetting, Plan, Project, Tenant
from tenants.services import check_timezone


class Strict(serializers.Serializer[Any]):
    """Refuses unknown fields by name."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, dict):
            unknown = sorted(set(data) - set(self.fields))
            if unknown:
                raise serializers.ValidationError({unknown[0]: "This field is not known."})
        return super().to_internal_value(data)


class TenantOut(serializers.ModelSerializer[Tenant]):
    plan = serializers.CharField(source="plan.name")

    class Meta:
        model = Tenant
        fields = [
            "id",
            "name",
            "state",
            "plan",
            "timezone",
            "currency",
            "policy",
            "evaluation_log",
            "cut_to_affordable",
            "queued_max",
            "created_at",
            "updated_at",
        ]
        read_only_fields = fields


class _TenantFields(Strict):
    name = serializers.CharField(max_length=200)
    plan = serializers.SlugRelatedField(slug_field="name", queryset=Plan.objects.all())
    timezone = serializers.CharField(max_length=64, validators=[check_timezone])
    evaluation_log = serializers.BooleanField()
    cut_to_affordable = serializers.BooleanField()
    queued_max = serializers.IntegerField(min_value=0, max_value=2_147_483_647, allow_null=True)


class TenantIn(_TenantFields):
    timezone = serializers.CharField(max_length=64, default="UTC", validators=[check_timezone])
    currency = serializers.RegexField(r"^[A-Z]{3}$", default="USD")
    evaluation_log = serializers.BooleanField(default=False)
    cut_to_affordable = serializers.BooleanField(default=False)
    queued_max = serializers.IntegerField(min_value=0, max_value=2_147_483_647, allow_null=True, default=None)


class TenantPatch(_TenantFields):
    """Every field may be left out; plan, queue and time zone are the operator's to change."""


class ReasonIn(Strict):
    reason = serializers.CharField(max_length=500, required=False, default="", allow_blank=True)


class ProjectOut(serializers.ModelSerializer[Project]):
    class Meta:
        model = Project
        fields = ["id", "tenant", "name", "created_at"]
        read_only_fields = fields


class ProjectIn(Strict):
    tenant = serializers.UUIDField(required=False, help_text="An operator names it; a key has its own.")
    name = serializers.CharField(max_length=200)


class KeyOut(serializers.ModelSerializer[ApiKey]):
    class Meta:
        model = ApiKey
        fields = [
            "id",
            "tenant",
            "project",
            "name",
            "prefix",
            "last4",
            "scopes",
            "allowed_models",
            "created_at",
            "expires_at",
            "revoked_at",
            "last_used_at",
        ]
        read_only_fields = fields


class KeyCreated(KeyOut):
    key = serializers.CharField(read_only=True, help_text="The key itself: shown now and never again.")

    class Meta(KeyOut.Meta):
        fields = [*KeyOut.Meta.fields, "key"]
        read_only_fields = fields


class KeyIn(Strict):
    project = serializers.UUIDField()
    name = serializers.CharField(max_length=200)
    scopes = serializers.ListField(
        child=serializers.ChoiceField(choices=KeyScope.choices), min_length=1, max_length=1, default=["inference"]
    )
    allowed_models = serializers.ListField(
        child=serializers.CharField(max_length=100), max_length=100, allow_null=True, default=None
    )
    expires_at = serializers.DateTimeField(allow_null=True, default=None)


class LimitOut(serializers.ModelSerializer[LimitSetting]):
    class Meta:
        model = LimitSetting
        fields = ["id", "scope", "tenant", "project", "api_key", "metric", "cap", "updated_at"]
        read_only_fields = fields


class CapIn(Strict):
    metric = serializers.ChoiceField(choices=METRICS)
    cap = serializers.IntegerField(
        min_value=0,
        max_value=9_000_000_000_000_000,
        allow_null=True,
        help_text="Requests, tokens, or nano-units of the tenant's currency; 0 blocks, null removes the limit.",
    )


class LimitsIn(Strict):
    scope = serializers.ChoiceField(choices=SCOPES)
    id = serializers.UUIDField(help_text="Of the tenant, project or key, as `scope` says.")
    limits = serializers.ListField(child=CapIn(), min_length=1, max_length=50)

    def validate_limits(self, value: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if len({item["metric"] for item in value}) != len(value):
            raise serializers.ValidationError("A metric may be named once.")
        return value


class AuditOut(serializers.ModelSerializer[AuditEntry]):
    class Meta:
        model = AuditEntry
        fields = ["id", "name", "tenant_id", "actor", "address", "subject", "before", "after", "happened_at"]
        read_only_fields = fields
