"""Admin of guardrail policies: edit the draft (checked when saved), publish it, look at what was published."""

import json
import math
import re
from collections.abc import Iterable
from enum import Enum
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, NoReturn, Union, get_args, get_origin

from django import forms
from django.contrib import admin, messages
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from unfold.admin import ModelAdmin, TabularInline
from unfold.decorators import action
from unfold.widgets import UnfoldAdminTextareaWidget

from safety import services
from safety.defaults import demo_document
from safety.document import PolicyError, Rule
from safety.models import Policy, PolicyVersion
from safety.try_page import TryForm, tried

DEPTH_MAX = 32
_ORDER = ("name", "kind", "stage", "action", "fail", "shadow", "config")
SHOWN_MAX = 8  # of a list in a rule's configuration
_PLACE = re.compile(r"^rules\[(\d+)\]")
_TOO_DEEP = f"nested deeper than {DEPTH_MAX} levels"


class _Indented(json.JSONEncoder):
    """Rules as a person reads them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "indent": 2, "ensure_ascii": False})


class RulesDecoder(json.JSONDecoder):
    """JSON that can be checked, stored and drawn again. Every refusal is the one error that the form knows."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "parse_constant": _no_constant, "parse_float": _finite})

    def decode(self, text: str, *options: Any) -> Any:
        """The value of `text`. Raises JSONDecodeError."""
        try:
            value = super().decode(text, *options)
            _check_depth(value)
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except json.JSONDecodeError:
            raise
        except UnicodeEncodeError as error:
            raise json.JSONDecodeError("a text holds half of a surrogate pair", text, 0) from error
        except RecursionError as error:
            raise json.JSONDecodeError(_TOO_DEEP, text, 0) from error
        except ValueError as error:
            raise json.JSONDecodeError(str(error), text, 0) from error
        return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEPTH_MAX + 1):
        level = [child for item in level for child in _children(item)]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def _children(item: Any) -> Iterable[Any]:
    if isinstance(item, dict):
        return item.values()
    return item if isinstance(item, list) else ()


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


class RulesField(forms.JSONField):
    """Says what is wrong with the text, which stays in the form as it was typed."""

    def prepare_value(self, value: Any) -> Any:
        """Fields in the order in which one reads a rule; the database keeps them by their length."""
        if isinstance(value, list):
            value = [_in_order(rule) for rule in value]
        return super().prepare_value(value)

    def to_python(self, value: Any) -> Any:
        """The rules. Raises ValidationError."""
        try:
            return super().to_python(value)
        except forms.ValidationError as error:
            cause = error.__context__
            if isinstance(cause, json.JSONDecodeError):
                message = f"This cannot be read as rules: {cause.msg} (line {cause.lineno}, column {cause.colno})."
                raise forms.ValidationError(message, code="invalid") from cause
            raise


def _in_order(rule: Any) -> Any:
    if not isinstance(rule, dict):
        return rule
    known = {name: rule[name] for name in _ORDER if name in rule}
    return {**known, **{name: value for name, value in rule.items() if name not in known}}


class PolicyForm(forms.ModelForm):  # type: ignore[type-arg]  # not subscriptable at run time
    """A draft is saved only if it compiles; each complaint names its field."""

    draft_rules = RulesField(
        encoder=_Indented,
        decoder=RulesDecoder,
        required=False,
        initial=list,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 30, "spellcheck": "false", "style": "font-family: monospace"}),
    )

    class Meta:
        model = Policy
        fields: ClassVar = ["name", "description", "draft_rules"]

    def clean_draft_rules(self) -> Any:
        rules = self.cleaned_data["draft_rules"]
        rules = [] if rules is None else rules
        try:
            services.check_rules(rules)
        except PolicyError as error:
            raise forms.ValidationError([_complaint(rules, field, said) for field, said in error.errors]) from error
        return rules


def _complaint(rules: Any, field: str, said: str) -> str:
    """`rules[0].config.pattern: …`, with the rule's own name where it has one."""
    found = _PLACE.match(field)
    rule = rules[int(found[1])] if found is not None and isinstance(rules, list) else None
    name = rule.get("name") if isinstance(rule, dict) else None
    return f"Rule “{name}”, {field}: {said}" if isinstance(name, str) and name else f"{field}: {said}"


def _of(rule: Any, field: str) -> Any:
    """A draft that was saved compiles; one of another release may hold anything."""
    return rule.get(field) if isinstance(rule, dict) else None


def rules_table(rules: Any) -> SafeString:
    """Rules as a person reads them, in the order in which they judge."""
    if not isinstance(rules, list) or not rules:
        return format_html("{}", "No rules: everything passes.")
    rows = format_html_join(
        "",
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
        ((_of(rule, "name"), _of(rule, "kind"), _stages(rule), _action(rule), _fails(rule), _config(rule))
         for rule in rules),
    )  # fmt: skip
    return format_html(
        '<table class="weir-table"><tr><th>Name</th><th>Kind</th><th>Looks at</th><th>On a match</th>'
        "<th>If it cannot run</th><th>Configuration</th></tr>{}</table>",
        rows,
    )


def _stages(rule: Any) -> str:
    stages = _of(rule, "stage")
    words = {"prompt": "prompts", "output": "answers"}
    return ", ".join(words.get(stage, str(stage)) for stage in stages) if isinstance(stages, list) else str(stages)


def _action(rule: Any) -> str:
    return f"{_of(rule, 'action')}{' (in shadow: only counts)' if _of(rule, 'shadow') else ''}"


def _fails(rule: Any) -> str:
    return "the text passes (open)" if _of(rule, "fail") == "open" else "the text is held back (closed)"


def _config(rule: Any) -> str:
    config = _of(rule, "config")
    if not isinstance(config, dict) or not config:
        return "as it comes"
    return "; ".join(f"{name}: {_value(value)}" for name, value in config.items())


def _value(value: Any) -> str:
    if isinstance(value, list):
        return (", ".join(str(item) for item in value[:SHOWN_MAX]) or "all") + (
            f" and {len(value) - SHOWN_MAX} more" if len(value) > SHOWN_MAX else ""
        )
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def syntax() -> SafeString:
    """What a rule may say, read from the very classes that check it."""
    members = get_args(get_args(Rule)[0])
    common = members[0].model_fields
    rows = [(name, _described(field)) for name, field in common.items() if name not in ("kind", "config")]
    kinds = [
        (get_args(member.model_fields["kind"].annotation)[0], _fields_of(member.model_fields["config"].annotation))
        for member in members
    ]
    row = "<tr><th><code>{}</code></th><td>{}</td></tr>"
    return format_html(
        '<details><summary>Show</summary><table class="weir-table"><tr><th>Field of every rule</th><td></td></tr>{}'
        "<tr><th><br>kind</th><td><br>fields of its <code>config</code></td></tr>{}</table></details>",
        format_html_join("", row, rows),
        format_html_join("", row, kinds),
    )


def _fields_of(config: type[BaseModel]) -> str:
    fields = config.model_fields.items()
    return "; ".join(f"{field.alias or name} ({_described(field)})" for name, field in fields)


def _described(field: FieldInfo) -> str:
    kind = _type(field.annotation)
    if field.is_required():
        return f"{kind}, required"
    default = field.get_default(call_default_factory=True)
    return kind if default is None else f"{kind}, else {json.dumps(default, default=str, ensure_ascii=False)}"


def _type(annotation: Any) -> str:
    """`list[Stage]` is `list of "prompt" or "output"`."""
    plain = {str: "text", int: "number", bool: "true or false", dict: "object", type(None): "nothing"}
    if annotation in plain:
        return plain[annotation]
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(f'"{member.value}"' for member in annotation)
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f'"{getattr(value, "value", value)}"' for value in inner)
    if origin is Annotated:
        return _type(inner[0])
    if origin is list:
        return f"list of {_type(inner[0])}"
    if origin in (UnionType, Union):
        return " or ".join(_type(one) for one in inner if one is not type(None))
    return plain.get(origin, "object")


class VersionInline(TabularInline):
    model = PolicyVersion
    fields = ("version", "published_at", "published_by")
    readonly_fields = fields
    ordering = ("-version",)
    extra = 0
    can_delete = False
    show_change_link = True

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Policy)
class PolicyAdmin(ModelAdmin):
    form = PolicyForm
    list_display = ("name", "state", "rules", "updated_at")
    search_fields = ("name",)
    readonly_fields = ("state", "draft_shown", "syntax_help", "example")
    empty_hint = "Add one, publish it, and choose it on a tenant's page: until then nothing is checked for that tenant."
    inlines = (VersionInline,)
    actions = ("publish_selected",)
    actions_detail = ("publish_one", "try_one")

    def get_fields(self, request: HttpRequest, obj: Policy | None = None) -> tuple[str, ...]:
        """What the draft says stands above its text, once there is one."""
        known = ("name", "description", "state", "draft_shown") if obj else ("name", "description")
        return (*known, "draft_rules", "syntax_help", "example")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Policy]:
        found: QuerySet[Policy] = super().get_queryset(request)
        current = PolicyVersion.objects.filter(policy=OuterRef("pk"), version=OuterRef("published_version"))
        return found.annotate(rules_in_force=Subquery(current.values("document__rules")[:1]))

    @admin.display(description="in force")
    def state(self, policy: Any) -> str:
        if policy.published_version == 0:
            return "never published"
        changed = policy.rules_in_force != policy.draft_rules
        return f"version {policy.published_version}" + (", draft differs" if changed else "")

    @admin.display(description="rules")
    def rules(self, policy: Policy) -> str:
        return ", ".join(str(rule.get("name")) for rule in policy.draft_rules) or "none"

    @admin.display(description="rules of the draft, in order")
    def draft_shown(self, policy: Policy) -> SafeString:
        return rules_table(policy.draft_rules)

    @admin.display(description="what a rule may say")
    def syntax_help(self, policy: Policy | None) -> SafeString:
        return syntax()

    @admin.display(description="example rules")
    def example(self, policy: Policy | None) -> SafeString:
        rules = demo_document(policy_id="example", version=1)["rules"]
        text = json.dumps(rules, indent=2, ensure_ascii=False)
        return format_html('<details><summary>Show</summary><pre class="weir-pre">{}</pre></details>', text)

    @admin.action(description="Publish the draft of the selected policies", permissions=["change"])
    def publish_selected(self, request: HttpRequest, queryset: QuerySet[Policy]) -> None:
        for policy in queryset:
            self._publish(request, policy)

    @action(description="Publish draft", url_path="publish", permissions=["change"])
    def publish_one(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Only by POST: a link asks first."""
        policy = self.get_object(request, object_id)
        if policy is None:
            return HttpResponseRedirect(reverse("admin:safety_policy_changelist"))
        if request.method == "POST":
            self._publish(request, policy)
            return HttpResponseRedirect(reverse("admin:safety_policy_change", args=(object_id,)))
        title = f"Publish the draft of {policy}"
        context = {
            **self.admin_site.each_context(request),
            "title": title,
            "opts": self.opts,
            "original": policy,
            "policy": policy,
            "draft": rules_table(policy.draft_rules),
        }
        return TemplateResponse(request, "safety/publish.html", context)

    @action(description="Try it", url_path="try", permissions=["view"])
    def try_one(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """A text and what the draft makes of it, on one page."""
        policy = self.get_object(request, object_id)
        if policy is None:
            return HttpResponseRedirect(reverse("admin:safety_policy_changelist"))
        form = TryForm(request.POST if request.method == "POST" else None)
        context = {
            **self.admin_site.each_context(request),
            "title": f"Try {policy}",
            "opts": self.opts,
            "original": policy,
            "form": form,
            "result": tried(policy, form) if form.is_valid() else "",
        }
        return TemplateResponse(request, "safety/try.html", context)

    def _publish(self, request: HttpRequest, policy: Policy) -> None:
        try:
            published = services.publish_policy(policy_id=str(policy.pk), published_by=str(request.user))
        except PolicyError as error:
            self.message_user(request, f"{policy.name} is not published: {error}", messages.ERROR)
        else:
            self.message_user(request, f"{policy.name}: version {published.version} is in force.", messages.SUCCESS)

    def has_delete_permission(self, request: HttpRequest, obj: Policy | None = None) -> bool:
        """A published policy stays: old requests name it."""
        return super().has_delete_permission(request, obj) and (obj is None or obj.published_version == 0)


@admin.register(PolicyVersion)
class PolicyVersionAdmin(ModelAdmin):
    """To read only."""

    list_display = ("policy", "version", "published_at", "published_by")
    list_filter = ("policy",)
    fields = ("policy", "version", "published_at", "published_by", "rules", "text")
    readonly_fields = fields
    empty_hint = "A policy's draft becomes a version when it is published, on the policy's page."

    @admin.display(description="rules, in order")
    def rules(self, version: PolicyVersion) -> SafeString:
        return rules_table(version.document.get("rules"))

    @admin.display(description="document")
    def text(self, version: PolicyVersion) -> SafeString:
        return format_html('<pre class="weir-pre">{}</pre>', json.dumps(version.document, indent=2, ensure_ascii=False))

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: PolicyVersion | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: PolicyVersion | None = None) -> bool:
        return False
