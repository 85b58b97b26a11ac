"""A request's nine steps in a person's words: names for ids, and for step 4 what each rule did.

Called by `views.request_timeline`. Verdicts come as `safety.verdicts.Verdict.line` writes them; words that this release
does not know are shown as they are, never dropped.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.urls import reverse
from django.utils.html import format_html

from billing.clickhouse.shapes import RequestRow, TimelineStep
from controlplane.pages.frame import Cell, Row, link
from safety.models import Policy
from tenants.models import ApiKey

HEADERS = ["Rule", "Looks at", "On a match", "What it did", "Time"]
_POLICY = re.compile(r"^policy (\S+) v(\d+)$")
_STAGES = {"prompt": "the prompt", "output": "the answer"}
_WHY = {"failed": "it failed", "timed_out": "it took too long", "refused": "its validators were too busy"}
_DID = {"block": "blocked", "redact": "redacted", "flag": "noted, nothing more"}


@dataclass(frozen=True, slots=True)
class Timeline:
    """Steps as the page draws them, and a row for each verdict of step 4."""

    steps: list[dict[str, Any]]
    rules: list[Row]


def read_timeline(row: RequestRow, *, may: Callable[[str], bool]) -> Timeline:
    """`row` as people read it; links lead where the reader `may` go. Two queries at most."""
    longest = max((step.duration_us or 0 for step in row.timeline), default=0)
    verdicts = [line for step in row.timeline if step.step == "GUARDRAIL" for line in step.detail.split("; ")[1:]]
    steps = [_step(step, longest, _detail(step, row, verdicts, may)) for step in row.timeline]
    return Timeline(steps=steps, rules=[_rule(line) for line in verdicts])


def _step(step: TimelineStep, longest_us: int, detail: Cell) -> dict[str, Any]:
    if step.duration_us is None:
        return {"name": step.step, "time": "", "detail": detail, "percent": 0}
    percent = round(100 * step.duration_us / longest_us) if longest_us else 0
    return {"name": step.step, "time": _time(step.duration_us), "detail": detail, "percent": percent}


def _detail(step: TimelineStep, row: RequestRow, verdicts: list[str], may: Callable[[str], bool]) -> Cell:
    if step.step == "AUTH":
        return _key(row, may)
    if step.step == "GUARDRAIL":
        return _guardrail(_policy(step.detail.split("; ")[0], may), verdicts)
    return step.detail


def _key(row: RequestRow, may: Callable[[str], bool]) -> Cell:
    found = ApiKey.objects.filter(id=row.api_key_id).select_related("project") if _is_uuid(row.api_key_id) else None
    key = found.first() if found is not None else None
    if key is None:
        return f"key {row.api_key_id}"
    address = reverse("admin:tenants_apikey_change", args=[key.pk])
    named = link(address, str(key)) if may("tenants.view_apikey") else str(key)
    return format_html("{} of project {}", named, key.project.name)


def _policy(text: str, may: Callable[[str], bool]) -> Cell:
    """`policy 0198… v3`, by its name."""
    found = _POLICY.match(text)
    policy = Policy.objects.filter(id=found[1]).first() if found and _is_uuid(found[1]) else None
    if found is None or policy is None:
        return text
    address = reverse("admin:safety_policy_change", args=[policy.pk])
    named = link(address, policy.name) if may("safety.view_policy") else policy.name
    return format_html("version {} of {}", found[2], named)


def _guardrail(named: Cell, verdicts: list[str]) -> Cell:
    """The outcome in a sentence."""
    if not verdicts:
        return named
    told = [fields for line in verdicts if (fields := _fields(line))]
    acted = [f"{fields['rule']} {_DID.get(fields['action'], fields['action'])}" for fields in told if _acted(fields)]
    return format_html("{}: {}", named, "; ".join(acted) or f"{_rules(len(verdicts))}, nothing stood in the way")


def _rule(line: str) -> Row:
    """One verdict as a row; a line of another shape whole in its first cell."""
    fields = _fields(line)
    if not fields:
        return [line, "", "", "", ""]
    action = fields["action"]
    shadow = fields.get("shadow")
    stage = _STAGES.get(fields["stage"], fields["stage"])
    spent = _time(int(fields["us"])) if fields.get("us", "").isdigit() else ""
    return [fields["rule"], stage, f"{shadow} (in shadow: only counts)" if shadow else action, _result(fields), spent]


def _result(fields: Mapping[str, str]) -> str:
    state, hits = fields["state"], fields["hits"]
    if state == "stopped":
        return "Stopped: another rule ended the text before this one saw all of it"
    if state != "ran":
        then = "so the text was held back (fails closed)" if _acted(fields) else "and the text passed (fails open)"
        return f"Did not run: {_WHY.get(state, state)}, {then}"
    if hits == "0":
        return "Nothing found"
    found = "1 match" if hits == "1" else f"{hits} matches"
    if fields.get("shadow"):
        return f"{found}, passed: in shadow mode"
    return f"{found}, {_DID.get(fields['action'], fields['action'])}"


def _fields(line: str) -> dict[str, str]:
    """`stage=prompt rule=ssn …` by name; empty for a line of another shape."""
    fields = dict(part.split("=", 1) for part in line.split(" ") if "=" in part)
    return fields if {"stage", "rule", "action", "state", "hits"} <= fields.keys() else {}


def _acted(fields: Mapping[str, str]) -> bool:
    return fields.get("acted") == "yes"


def _rules(number: int) -> str:
    return "1 rule looked" if number == 1 else f"{number} rules looked"


def _time(spent_us: int) -> str:
    return f"{spent_us} µs" if spent_us < 1000 else f"{spent_us / 1000:,.2f} ms"


def _is_uuid(text: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", text) is not None
