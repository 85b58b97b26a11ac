"""Bodies of the management API. Input is strict: a field that is not known is refused, never dropped."""

import unicodedata
from datetime import timedelta
from decimal import Decimal
from typing import Any

from django.apps import apps
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from contracts.money import NANO_MAX, decimal_from_nano, nano_from_decimal, text_from_nano
from contracts.tenancy import Metric
from tenants.models import (
    SCOPES,
    SERVICE_CLASSES,
    SETTABLE,
    ApiKey,
    AuditEntry,
    KeyScope,
    LimitSetting,
    Member,
    Plan,
    Project,
    Role,
    Tenant,
)
from tenants.services import check_timezone
from tenants.services.keys import MODELS_MAX, NETWORKS_MAX, OVERLAP_MAX
from tenants.services.limits import ALERTS_MAX, KEPT

PERIODS = {"day": Metric.SPEND_PER_DAY, "month": Metric.SPEND_PER_MONTH, "lifetime": Metric.SPEND_LIFETIME}
_PERIOD_OF = {metric.value: period for period, metric in PERIODS.items()}
CAP_MAX = 9_000_000_000_000_000
OVERLAP_SECONDS_MAX = int(OVERLAP_MAX.total_seconds())
INTEGER_MAX = 2_147_483_647


class Strict(serializers.Serializer[Any]):
    """Refuses unknown fields by name."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, dict):
            unknown = sorted(set(data) - set(self.fields))
            if unknown:
                raise serializers.ValidationError({unknown[0]: "This field is not known."})
        return super().to_internal_value(data)


class Whole(serializers.IntegerField):
    """A JSON integer. Neither `"5"` nor `5.0` nor `true` is one."""

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int):
            raise serializers.ValidationError("A valid integer is required.")
        return super().to_internal_value(data)


# Marks, embeddings, overrides and isolates of UAX #9: a name could show itself as another.
_TURNS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class Text(serializers.CharField):
    """A JSON string of one line: a number is not one, and nothing in it moves or turns what stands beside it."""

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            raise serializers.ValidationError("Not a valid string.")
        if any(unicodedata.category(each) == "Cc" or each in _TURNS for each in data):
            raise serializers.ValidationError("No control characters, nor such as set a direction of writing.")
        return super().to_internal_value(data)


class Choice(serializers.ChoiceField):
    """One of a few words, all of which its error names."""

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, str) or data not in self.choices:
            raise serializers.ValidationError(f"One of: {', '.join(map(str, self.choices))}.")
        return super().to_internal_value(data)


class Flag(serializers.BooleanField):
    """`true` or `false`, not a word for it."""

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            raise serializers.ValidationError("Must be true or false.")
        return data


class Amount(serializers.Field[int, Any, str, Any]):
    """Money in units of the currency, as a decimal text: never a float. Kept as nano-units."""

    def to_internal_value(self, data: Any) -> int:
        if not isinstance(data, str) or not _is_decimal(data):
            raise serializers.ValidationError('Write it as a decimal text, like "12.50".')
        try:
            nano = int(nano_from_decimal(Decimal(data)))
        except ValueError as error:
            raise serializers.ValidationError(str(error)) from error
        if nano > NANO_MAX:
            raise serializers.ValidationError(f"At most {decimal_from_nano(NANO_MAX):.0f}.")
        return nano

    def to_representation(self, value: int) -> str:
        return text_from_nano(value)


extend_schema_field({"type": "string", "pattern": r"^[0-9]{1,10}(\.[0-9]{1,9})?$", "examples": ["12.50"]})(Amount)


def _is_decimal(text: str) -> bool:
    whole, dot, part = text.partition(".")
    digits = whole.isascii() and whole.isdigit() and len(whole) <= 10
    return digits and (not dot or (part.isascii() and part.isdigit() and len(part) <= 9))


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
            "prepaid",
            "created_at",
            "updated_at",
        ]
        read_only_fields = fields


class PlanName(serializers.SlugRelatedField[Plan]):
    """A plan by its name."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(slug_field="name", queryset=Plan.objects.all(), **kwargs)

    def to_internal_value(self, data: Any) -> Plan:
        if not isinstance(data, str) or "\x00" in data:
            raise serializers.ValidationError("Not a valid string.")
        return super().to_internal_value(data)


class PriceListName(serializers.SlugRelatedField[Any]):
    """A price list by its name; the room of prices is beside this one, so its model is found by its label."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(slug_field="name", queryset=apps.get_model("billing", "PriceList").objects.all(), **kwargs)

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, str) or "\x00" in data:
            raise serializers.ValidationError("Not a valid string.")
        return super().to_internal_value(data)


class PlanLimitOut(serializers.ModelSerializer[LimitSetting]):
    class Meta:
        model = LimitSetting
        fields = ["metric", "model", "cap", "alerts"]
        read_only_fields = fields


class PlanOut(serializers.ModelSerializer[Plan]):
    price_list = serializers.CharField(source="price_list.name", default=None, allow_null=True)
    limits = PlanLimitOut(many=True, help_text="What each of its tenants may use in all, where it has no own limit.")

    class Meta:
        model = Plan
        fields = [
            "id",
            "name",
            "weight_milli",
            "queued_max",
            "max_tokens_default",
            "max_tokens_cap",
            "service_class",
            "price_list",
            "limits",
            "created_at",
            "updated_at",
        ]
        read_only_fields = fields


class _PlanFields(Strict):
    name = Text(max_length=100)
    weight_milli = Whole(min_value=1, max_value=INTEGER_MAX, help_text="Share of a busy pool in thousandths.")
    queued_max = Whole(min_value=0, max_value=INTEGER_MAX)
    max_tokens_default = Whole(min_value=1, max_value=INTEGER_MAX)
    max_tokens_cap = Whole(min_value=0, max_value=INTEGER_MAX, allow_null=True, help_text="null = the model's own end.")
    service_class = Choice(
        SERVICE_CLASSES,
        help_text="batch: its requests use what interactive ones leave of a busy pool, beside a share of their own.",
    )
    price_list = PriceListName(allow_null=True, help_text="By its name; null = what everybody pays.")


class PlanIn(_PlanFields):
    weight_milli = Whole(min_value=1, max_value=INTEGER_MAX, default=1000)
    queued_max = Whole(min_value=0, max_value=INTEGER_MAX, default=1000)
    max_tokens_default = Whole(min_value=1, max_value=INTEGER_MAX, default=512)
    max_tokens_cap = Whole(min_value=0, max_value=INTEGER_MAX, allow_null=True, default=None)
    service_class = Choice(SERVICE_CLASSES, default="interactive")
    price_list = PriceListName(allow_null=True, default=None)


class PlanPatch(_PlanFields):
    """Every field may be left out; a change is in force for its tenants at once."""


class _TenantFields(Strict):
    name = Text(max_length=200)
    plan = PlanName()
    timezone = Text(max_length=64, validators=[check_timezone], help_text="IANA zone, e.g. Europe/Berlin.")
    evaluation_log = Flag()
    cut_to_affordable = Flag()
    queued_max = Whole(min_value=0, max_value=INTEGER_MAX, allow_null=True)
    prepaid = Flag(help_text="It spends no more than its credit: the limit `prepaid_credit`, kept by the platform.")


class TenantIn(_TenantFields):
    timezone = Text(max_length=64, default="UTC", validators=[check_timezone])
    currency = serializers.RegexField(r"^[A-Z]{3}\Z", default="USD")
    evaluation_log = Flag(default=False)
    cut_to_affordable = Flag(default=False)
    queued_max = Whole(min_value=0, max_value=INTEGER_MAX, allow_null=True, default=None)
    prepaid = Flag(default=False)


class TenantPatch(_TenantFields):
    """Every field may be left out; plan, queue, time zone and `prepaid` are the operator's to change."""


class ReasonIn(Strict):
    reason = Text(max_length=500, required=False, default="", allow_blank=True)


class ProjectOut(serializers.ModelSerializer[Project]):
    class Meta:
        model = Project
        fields = ["id", "tenant", "name", "created_at", "updated_at"]
        read_only_fields = fields


class ProjectIn(Strict):
    tenant = serializers.UUIDField(required=False, help_text="An operator names it; others have their own.")
    name = Text(max_length=200)


class ProjectPatch(Strict):
    name = Text(max_length=200)


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
            "allowed_networks",
            "created_at",
            "updated_at",
            "expires_at",
            "expired_at",
            "revoked_at",
            "rotated_at",
            "previous_last4",
            "previous_expires_at",
            "last_used_at",
        ]
        read_only_fields = fields


class KeyShown(KeyOut):
    key = serializers.CharField(read_only=True, help_text="The key itself: shown now and never again.")

    class Meta(KeyOut.Meta):
        fields = [*KeyOut.Meta.fields, "key"]
        read_only_fields = fields


class _KeyFields(Strict):
    name = Text(max_length=200)
    allowed_models = serializers.ListField(
        child=Text(max_length=100), max_length=MODELS_MAX, allow_null=True, help_text="null = every model."
    )
    allowed_networks = serializers.ListField(
        child=Text(max_length=60), max_length=NETWORKS_MAX, help_text="CIDR blocks; empty = from anywhere."
    )
    expires_at = serializers.DateTimeField(allow_null=True)


class KeyIn(_KeyFields):
    project = serializers.UUIDField()
    scopes = serializers.ListField(
        child=Choice(choices=KeyScope.choices),
        min_length=1,
        max_length=1,
        default=["inference"],
        help_text="One: a management key is apart from inference keys.",
    )
    allowed_models = serializers.ListField(
        child=Text(max_length=100), max_length=MODELS_MAX, allow_null=True, default=None
    )
    allowed_networks = serializers.ListField(child=Text(max_length=60), max_length=NETWORKS_MAX, default=list)
    expires_at = serializers.DateTimeField(allow_null=True, default=None)


class KeyPatch(_KeyFields):
    """Every field may be left out."""


class RotateIn(Strict):
    overlap_seconds = Whole(
        min_value=0,
        max_value=OVERLAP_SECONDS_MAX,
        default=86_400,
        help_text="How long the old text still opens the key; older ones keep their time. 0 = none does.",
    )

    def overlap(self) -> timedelta:
        """The checked overlap."""
        return timedelta(seconds=self.validated_data["overlap_seconds"])


class MemberOut(serializers.ModelSerializer[Member]):
    user = serializers.CharField(source="user.username")
    email = serializers.CharField(source="user.email")

    class Meta:
        model = Member
        fields = ["id", "tenant", "user", "email", "role", "created_at", "updated_at"]
        read_only_fields = fields


class MemberIn(Strict):
    tenant = serializers.UUIDField(required=False, help_text="An operator names it; others have their own.")
    user = Text(max_length=150, help_text="User name of somebody who signs in here.")
    role = Choice(choices=Role.choices, default=Role.DEVELOPER.value)


class MemberPatch(Strict):
    role = Choice(choices=Role.choices)


class LimitOut(serializers.ModelSerializer[LimitSetting]):
    class Meta:
        model = LimitSetting
        fields = ["id", "scope", "tenant", "project", "api_key", "metric", "model", "cap", "alerts", "updated_at"]
        read_only_fields = fields


class Settable(Choice):
    """A metric that people set. The one that they do not says why."""

    def to_internal_value(self, data: Any) -> Any:
        if data == Metric.PREPAID_CREDIT:
            raise serializers.ValidationError(KEPT)
        return super().to_internal_value(data)


class CapIn(Strict):
    metric = Settable(choices=SETTABLE)
    cap = Whole(
        min_value=0,
        max_value=CAP_MAX,
        allow_null=True,
        help_text="Requests, tokens, or nano-units of the tenant's currency; 0 blocks, null removes the limit.",
    )


class _Owned(Strict):
    scope = Choice(choices=SCOPES)
    id = serializers.UUIDField(help_text="Of the tenant, project or key, as `scope` says.")
    model = Text(max_length=100, required=False, default="", allow_blank=True, help_text="Empty = all models together.")


class _Caps(Strict):
    limits = serializers.ListField(child=CapIn(), min_length=1, max_length=50)

    def validate_limits(self, value: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if len({item["metric"] for item in value}) != len(value):
            raise serializers.ValidationError("A metric may be named once.")
        return value


class LimitsIn(_Caps, _Owned):
    """Limits of one owner."""


class PlanLimitsIn(_Caps):
    model = Text(max_length=100, required=False, default="", allow_blank=True, help_text="Empty = all models together.")


class BudgetOut(serializers.ModelSerializer[LimitSetting]):
    period = serializers.SerializerMethodField()
    amount = Amount(source="cap")
    currency = serializers.SerializerMethodField()

    class Meta:
        model = LimitSetting
        fields = [
            "id",
            "scope",
            "tenant",
            "project",
            "api_key",
            "period",
            "model",
            "amount",
            "currency",
            "alerts",
            "updated_at",
        ]
        read_only_fields = fields

    @extend_schema_field({"type": "string", "enum": list(PERIODS)})
    def get_period(self, row: LimitSetting) -> str:
        """The calendar period in the tenant's zone, or its lifetime."""
        return _PERIOD_OF[row.metric]

    def get_currency(self, row: LimitSetting) -> str:
        """The tenant's; a budget of a plan has none of its own and is not shown here."""
        assert row.tenant is not None
        return row.tenant.currency


class BudgetIn(_Owned):
    period = Choice(choices=list(PERIODS))
    amount = Amount(allow_null=True, help_text="Spent at most, exactly; 0 blocks, null removes the budget.")
    alerts = serializers.ListField(
        child=Whole(min_value=1, max_value=100),
        max_length=ALERTS_MAX,
        required=False,
        allow_null=True,
        default=None,
        help_text="Percents whose crossing is told of by `budget.threshold`; they refuse nothing. null = as they are.",
    )


class AuditOut(serializers.ModelSerializer[AuditEntry]):
    class Meta:
        model = AuditEntry
        fields = ["id", "name", "tenant_id", "actor", "address", "subject", "before", "after", "happened_at"]
        read_only_fields = fields
