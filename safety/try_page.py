"""The console's page on which a draft is tried on a text. Called by `admin`; nothing of the text is kept."""

from typing import Any

from django import forms
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextareaWidget

from safety import services
from safety.document import PolicyError
from safety.models import Policy
from safety.trying import TEXT_BYTES_MAX, TrialRefused, even_chunks
from safety.verdicts import Stage

_STAGES = {Stage.PROMPT: "a prompt", Stage.OUTPUT: "an answer, in chunks of four characters"}
_ACTIONS = {
    "pass": "It passes as it is.",
    "flag": "It passes as it is; rules counted matches.",
    "redact": "It passes, redacted.",
    "block": "It is blocked.",
}


class TryForm(forms.Form):
    """A text, and what it is taken for."""

    stage = forms.ChoiceField(
        label="Taken for",
        choices=[(stage.value, words) for stage, words in _STAGES.items()],
        widget=UnfoldAdminSelectWidget(),
    )
    text = forms.CharField(
        strip=False,
        help_text=f"At most {TEXT_BYTES_MAX // 1024} KB. Neither stored nor logged.",
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 8, "spellcheck": "false", "autocomplete": "off"}),
    )

    def clean_text(self) -> str:
        text: str = self.cleaned_data["text"].replace("\r\n", "\n")
        if len(text.encode()) > TEXT_BYTES_MAX:
            raise forms.ValidationError(f"At most {TEXT_BYTES_MAX} bytes of UTF-8.")
        return text


def tried(policy: Policy, form: TryForm) -> SafeString:
    """What the policy makes of a valid form's text."""
    stage, text = Stage(form.cleaned_data["stage"]), form.cleaned_data["text"]
    origin, version, rules = services.rules_to_try(policy)
    chunks = even_chunks(text) if stage is Stage.OUTPUT else []
    try:
        found = services.try_rules(rules, stage=stage, text=text, chunks=chunks)
    except (PolicyError, TrialRefused) as error:
        return format_html("<p><b>{}</b></p>", str(error))
    return format_html(
        '<p><b>{}</b> {}</p><p>Rules of the {}.</p>{}<table class="weir-table"><tr><th>Rule</th><th>Kind</th>'
        "<th>On a match</th><th>It</th><th>Matches</th><th>Milliseconds</th></tr>{}</table>{}",
        _ACTIONS[found["action"]],
        _why(found),
        "draft" if version is None else f"{origin} version {version}",
        _left(found["text"]),
        format_html_join(
            "",
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            (
                (one["rule"], one["kind"], _action(one), one["state"].replace("_", " "), one["hits"], _ms(one))
                for one in found["rules"]
            ),
        ),
        _chunks(found) if stage is Stage.OUTPUT else "",
    )


def _why(found: dict[str, Any]) -> str:
    return "" if found["blocked_by"] is None else f"By the rule “{found['blocked_by']}”."


def _left(text: str | None) -> SafeString:
    if text is None:
        return format_html("{}", "")
    return format_html('<p>What leaves:</p><pre class="weir-pre">{}</pre>', text)


def _action(one: dict[str, Any]) -> str:
    return f"{one['action']} (in shadow: would {one['shadow']})" if one["shadow"] else str(one["action"])


def _ms(one: dict[str, Any]) -> str:
    return "" if one["latency_ms"] is None else f"{one['latency_ms']:.3f}"


def _chunks(found: dict[str, Any]) -> SafeString:
    rows = [(number, one["length"], one["released"], one["held"]) for number, one in enumerate(found["chunks"])]
    return format_html(
        '<details><summary>Chunk by chunk</summary><table class="weir-table"><tr><th>Chunk</th><th>Characters</th>'
        "<th>Left then</th><th>Held back then</th></tr>{}<tr><td>end</td><td></td><td>{}</td><td></td></tr></table>"
        "</details>",
        format_html_join("", "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>", rows),
        found["at_end"],
    )
