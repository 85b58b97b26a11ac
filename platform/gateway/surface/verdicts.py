"""What a customer is told of the guardrails: that a text was refused or redacted, where, and how often. Pure.

A verdict line names the operator's rules and tells how many there are and what they cost; of that a customer sees
nothing: rules that only flag stay silent, and the matches of all rules that acted alike are one count.
"""

from collections.abc import Iterable
from typing import Any


def shown_verdicts(lines: Iterable[str]) -> list[dict[str, Any]]:
    """`[{"stage", "action", "matches"}]` in the order of first matches, from lines of `safety.verdicts.Verdict`."""
    counts: dict[tuple[str, str], int] = {}
    for line in lines:
        facts = dict(word.partition("=")[::2] for word in line.split(" "))
        if facts.get("acted") == "yes":
            place = (facts.get("stage", ""), facts.get("action", ""))
            counts[place] = counts.get(place, 0) + int(facts.get("hits", "0"))
    return [{"stage": stage, "action": action, "matches": hits} for (stage, action), hits in counts.items()]
