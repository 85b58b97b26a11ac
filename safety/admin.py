"""Admin of guardrail policies: edit the draft (checked when saved), publish it, look at what was published."""

import json
import math
from collections.abc import Iterable
from typing import Any, ClassVar, NoReturn

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.admin import ModelAdmin, TabularInline
from unfold.decorators import action
from unfold.widgets import UnfoldAdminTextareaWidget

from safety import services
from safety.defaults import demo_document
from safety.document import PolicyError
from safety.models import Policy, PolicyVersion

DEPTH_MAX = 32
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
            raise forms.ValidationError([f"{field}: {message}" for field, message in error.errors]) from error
        return rules


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
    readonly_fields = ("state", "example")
    inlines = (VersionInline,)
    actions = ("publish_selected",)
    actions_detail = ("publish_one",)

    @admin.display(description="in force")
    def state(self, policy: Policy) -> str:
        if policy.published_version == 0:
            return "never published"
        current = policy.versions.filter(version=policy.published_version).first()
        changed = current is None or current.document["rules"] != policy.draft_rules
        return f"version {policy.published_version}" + (", draft differs" if changed else "")

    @admin.display(description="rules")
    def rules(self, policy: Policy) -> str:
        return ", ".join(str(rule.get("name")) for rule in policy.draft_rules) or "none"

    @admin.display(description="example rules")
    def example(self, policy: Policy | None) -> SafeString:
        rules = demo_document(policy_id="example", version=1)["rules"]
        text = json.dumps(rules, indent=2, ensure_ascii=False)
        return format_html("<pre>{}</pre>", text)

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
        context = {**self.admin_site.each_context(request), "title": title, "opts": self.opts, "policy": policy}
        return TemplateResponse(request, "safety/publish.html", context)

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
    fields = ("policy", "version", "published_at", "published_by", "text")
    readonly_fields = fields

    @admin.display(description="document")
    def text(self, version: PolicyVersion) -> SafeString:
        return format_html("<pre>{}</pre>", json.dumps(version.document, indent=2, ensure_ascii=False))

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: PolicyVersion | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: PolicyVersion | None = None) -> bool:
        return False
