"""The list of all cases, in the order in which they are shown. A new kind is one entry here.

Invariant: titles are unique, so that a verdict names one case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from infra.conformance.case import Case, Kind
from infra.conformance.cases import (
    accepted,
    alive,
    answers,
    engine,
    errors,
    features,
    framing,
    headers,
    json_text,
    lines,
    messages,
    paths,
    ranges,
    realtime,
    routes,
    sizes,
    slow,
    streams,
    types,
)

KINDS: tuple[Kind, ...] = (
    errors.KIND,
    routes.KIND,
    answers.KIND,
    messages.KIND,
    streams.KIND,
    features.KIND,
    accepted.KIND,
    types.KIND,
    ranges.KIND,
    json_text.KIND,
    sizes.KIND,
    engine.KIND,
    headers.KIND,
    lines.KIND,
    paths.KIND,
    framing.KIND,
    realtime.KIND,
    slow.KIND,
    alive.KIND,
)
GROUPS = ("openai", "odd")


class NoSuchGroup(ValueError):
    """No group and no kind has this name; the text names those there are."""


def all_cases() -> list[Case]:
    """Every case with its group and kind."""
    return [replace(case, group=kind.group, kind=kind.name) for kind in KINDS for case in kind.cases]


def chosen_cases(only: Sequence[str]) -> list[Case]:
    """The cases of these groups or kinds; all without any. Raises NoSuchGroup."""
    known = {*GROUPS, *(kind.name for kind in KINDS)}
    for name in only:
        if name not in known:
            raise NoSuchGroup(f"no group or kind {name!r}; there are {', '.join(sorted(known))}")
    return [case for case in all_cases() if not only or case.group in only or case.kind in only]
