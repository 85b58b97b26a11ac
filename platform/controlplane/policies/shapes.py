"""Bodies of the policy API. Input is strict: a field that is not known is refused."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from safety.document import RULES_MAX
from safety.models import Policy
from safety.trying import CHUNKS_MAX, TEXT_BYTES_MAX, even_chunks
from safety.verdicts import Action, RuleState, Stage
from tenants.api.shapes import Choice, Strict

_STATES = [state.value for state in RuleState]
ACTIONS = [action.value for action in Action]
RESULTS = ["pass", *ACTIONS]


class PolicyOut(serializers.ModelSerializer[Policy]):
    draft_rules = serializers.ListField(child=serializers.DictField(), help_text="In force only once published.")

    class Meta:
        model = Policy
        fields = ["id", "name", "description", "published_version", "draft_rules", "created_at", "updated_at"]
        read_only_fields = fields


@extend_schema_field({"type": "string", "maxLength": TEXT_BYTES_MAX})
class AnyText(serializers.Field[str, Any, str, Any]):
    """A JSON string as it is: what no name may hold is what a rule may look for."""

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            raise serializers.ValidationError("Not a valid string.")
        if len(data.encode()) > TEXT_BYTES_MAX:
            raise serializers.ValidationError(f"At most {TEXT_BYTES_MAX} bytes of UTF-8.")
        return data


_LENGTH = {"type": "integer", "minimum": 1, "maximum": TEXT_BYTES_MAX}


@extend_schema_field({"oneOf": [_LENGTH, {"type": "array", "items": _LENGTH, "maxItems": CHUNKS_MAX}]})
class Chunks(serializers.Field[Any, Any, Any, Any]):
    """One length for all chunks, or the length of each."""

    def to_internal_value(self, data: Any) -> Any:
        lengths = data if isinstance(data, list) else [data]
        if len(lengths) > CHUNKS_MAX:
            raise serializers.ValidationError(f"At most {CHUNKS_MAX} chunks.")
        if not all(
            isinstance(one, int) and not isinstance(one, bool) and 1 <= one <= TEXT_BYTES_MAX for one in lengths
        ):
            raise serializers.ValidationError(f"A whole number from 1 to {TEXT_BYTES_MAX}, or a list of such.")
        return data


class DraftIn(Strict):
    rules = serializers.ListField(child=serializers.DictField(), max_length=RULES_MAX)


class TryIn(Strict):
    text = AnyText(help_text="Never stored and never logged.")
    stage = Choice(choices=[stage.value for stage in Stage])
    chunks = Chunks(
        required=False, help_text="Of an answer, in characters: one length for all, or each; what is left is one more."
    )
    document = DraftIn(required=False, help_text="Instead of the saved draft.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """`chunks` become the list of them."""
        named, text = attrs.get("chunks"), attrs["text"]
        if attrs["stage"] == Stage.PROMPT:
            if named is not None:
                raise serializers.ValidationError({"chunks": "A prompt comes whole: only an answer has chunks."})
            return {**attrs, "chunks": []}
        chunks = named if isinstance(named, list) else even_chunks(text, named)
        if len(chunks) > CHUNKS_MAX:
            raise serializers.ValidationError({"chunks": f"These would be more than {CHUNKS_MAX} chunks."})
        if sum(chunks) > len(text):
            raise serializers.ValidationError({"chunks": "Together they are longer than the text."})
        return {**attrs, "chunks": chunks}


class RuleToldOut(serializers.Serializer[Any]):
    rule = serializers.CharField()
    kind = serializers.CharField()
    action = serializers.ChoiceField(choices=ACTIONS)
    shadow = serializers.ChoiceField(choices=ACTIONS, allow_null=True, help_text="What it would do out of shadow.")
    state = serializers.ChoiceField(choices=_STATES, help_text="Only `ran` saw the whole text.")
    hits = serializers.IntegerField()
    acted = serializers.BooleanField()
    latency_ms = serializers.FloatField(
        allow_null=True, help_text="Measured; of an answer, with the rule alone. null = it was not run."
    )


class PieceOut(serializers.Serializer[Any]):
    length = serializers.IntegerField(help_text="Characters of the chunk.")
    released = serializers.CharField(allow_blank=True, help_text="What left when it had come.")
    held = serializers.IntegerField(help_text="Characters held back then.")


class CutOut(serializers.Serializer[Any]):
    chunk = serializers.IntegerField(allow_null=True, help_text="The first is 0; null = when the whole was judged.")
    released = serializers.IntegerField(help_text="Characters that had left.")


class TrialOut(serializers.Serializer[Any]):
    origin = serializers.ChoiceField(choices=["draft", "published", "document"], help_text="Whose rules were run.")
    version = serializers.IntegerField(allow_null=True, help_text="Of the published rules.")
    stage = serializers.ChoiceField(choices=[stage.value for stage in Stage])
    action = serializers.ChoiceField(choices=RESULTS, help_text="What came of the whole.")
    blocked_by = serializers.CharField(allow_null=True)
    text = serializers.CharField(
        allow_null=True, allow_blank=True, help_text="What the model reads, or the client got. null = refused."
    )
    rules = RuleToldOut(many=True, help_text="In the order of the policy; validators after the others.")
    chunks = PieceOut(many=True)
    at_end = serializers.CharField(allow_blank=True, help_text="What left when the answer had ended.")
    cut = CutOut(allow_null=True, help_text="Where a block ended the answer.")
