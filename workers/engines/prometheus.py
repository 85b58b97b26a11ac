"""Reads the few samples that matter from Prometheus text (exposition format 0.0.4). Pure; called by `http`."""

import re

_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})? (?P<value>[^ ]+)")
_LABEL = re.compile(r'(?P<key>[a-zA-Z_][a-zA-Z0-9_]*)="(?P<value>(?:[^"\\]|\\.)*)"')


def read_sums(text: str, names: frozenset[str]) -> dict[str, float]:
    """The sum over all label sets of each sample in `names` that is there."""
    sums: dict[str, float] = {}
    for line in text.splitlines():
        sample = _SAMPLE.match(line)
        if sample is not None and sample["name"] in names:
            sums[sample["name"]] = sums.get(sample["name"], 0.0) + float(sample["value"])
    return sums


def read_labels(text: str, name: str) -> dict[str, str]:
    """Labels of the first sample called `name`; empty when it is not there."""
    for line in text.splitlines():
        sample = _SAMPLE.match(line)
        if sample is not None and sample["name"] == name:
            return {label["key"]: label["value"] for label in _LABEL.finditer(sample["labels"] or "")}
    return {}
