"""POST /api/v1/capacity: the capacity plan by the management API. The body's names are those of the command."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from contracts.errors import InvalidRequest
from controlplane.capacity.given import KINDS
from controlplane.capacity.layers import CapacityRefused
from controlplane.capacity.plan import as_document, make_plan
from controlplane.capacity.reading import COUNT_MAX, NUMBERS, Said, read_ask
from controlplane.models import ServedModel
from tenants.api.routes import Route
from tenants.api.shapes import Choice, Strict, Text, Whole
from tenants.roles import Action

_WHOLE = (*NUMBERS, "params", "kv_dtype_bytes", "tokens", "tp", "block_size", "shared_prefix_tokens")
_DECIMAL = ("dtype_bytes", "budget_gib", "device_memory_gib", "utilization", "overhead_gib")
CONFIG_FIELDS_MAX = 500


def _number(help_text: str = "") -> Whole:
    return Whole(required=False, min_value=1, max_value=COUNT_MAX, help_text=help_text)


def _decimal(help_text: str = "") -> Text:
    return Text(required=False, max_length=40, help_text=help_text or 'A decimal text, like "0.5".')


class CapacityIn(Strict):
    config = serializers.DictField(required=False, help_text="A model's config.json, instead of single numbers.")
    attention = Choice(choices=KINDS, required=False)
    layers = _number()
    heads = _number()
    kv_heads = _number()
    head_size = _number("Of `mla`, the latent vector with its rotary part.")
    window = _number("Tokens that a sliding layer keeps.")
    latent_size = _number()
    full_layers = _number("Of `hybrid`: layers that keep every token.")
    state_bytes = _number("Of `linear`: bytes of a layer's state.")
    params = _number()
    kv_dtype_bytes = _number("Else that of a parameter.")
    tokens = _number("Cached tokens of a sequence, prompt and answer.")
    tp = _number("Devices of the tensor-parallel group.")
    block_size = _number()
    shared_prefix_tokens = _number("An assumption; its ceiling is told apart.")
    dtype_bytes = _decimal()
    budget_gib = _decimal("Room for the cache on all devices together, a decimal text.")
    device_memory_gib = _decimal("Instead: the memory of each device, a decimal text.")
    utilization = _decimal()
    overhead_gib = _decimal()

    def validate_config(self, value: dict[str, Any]) -> dict[str, Any]:
        if len(value) > CONFIG_FIELDS_MAX:
            raise serializers.ValidationError(f"At most {CONFIG_FIELDS_MAX} fields.")
        return value


class CapacityOut(serializers.Serializer[Any]):
    """The plan; `formulas` tells in words how each number comes about."""

    weights_bytes = serializers.IntegerField()
    weights_bytes_per_device = serializers.IntegerField()
    kv_bytes_per_sequence = serializers.IntegerField()
    kv_bytes_per_sequence_per_device = serializers.IntegerField()
    kv_budget_bytes_per_device = serializers.IntegerField()
    kv_cache_tokens = serializers.IntegerField(allow_null=True)
    ceiling_sequences = serializers.IntegerField()
    ceiling_means = serializers.CharField()
    in_units = serializers.DictField(child=serializers.CharField())
    layers = serializers.ListField(child=serializers.DictField())
    devices = serializers.DictField()
    formulas = serializers.DictField(child=serializers.CharField())
    assuming_shared_prefix = serializers.DictField(required=False)


class CapacityRoute(Route[ServedModel]):
    """Reads nothing and changes nothing: arithmetic on what the body says."""

    queryset = ServedModel.objects.all()
    serializer_class = CapacityOut
    needs = {"create": Action.READ}

    @extend_schema(
        summary="Plan memory: weights, KV cache, the ceiling of sequences",
        description="A ceiling is an upper bound; it promises neither throughput nor latency, and no admission.",
        request=CapacityIn,
        responses=CapacityOut,
    )
    def create(self, request: Request) -> Response:
        body = self.body(CapacityIn)
        said = Said(
            numbers={name: body.get(name) for name in _WHOLE},
            decimals={name: body.get(name) for name in _DECIMAL},
            attention=body.get("attention"),
            config=body.get("config"),
        )
        try:
            return Response(as_document(make_plan(read_ask(said))))
        except CapacityRefused as refused:
            raise InvalidRequest(str(refused), param=refused.param or None) from refused
