"""What must hold of the replies to a case. Called by the tables of `cases/`; pure.

A check returns nothing, or raises Wrong (what must hold does not) or Skipped (the server says that it does not do
this). Invariant: a check looks at nothing but the replies, so each is tested on made-up ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from infra.conformance.case import Answer, Check, Reply, Seen, Skipped, Wrong

REFUSALS = (400, 422)
_LEAKS = (b"Traceback (most recent call last)", b'File "/', b"site-packages", b"<!DOCTYPE", b"<html")
_DURATION = re.compile(r"^(\d+(\.\d+)?(ms|s|m|h|d))+$|^\d+(\.\d+)?$")


def sane(seen: Seen, *, may_fail: frozenset[int] = frozenset()) -> None:
    """What holds for every answer of every case: no failure of the server's own, no insides, no key, Retry-After."""
    secrets = [secret.encode() for secret in (seen.target.key, seen.target.other_key) if secret]
    for reply in seen.replies:
        for answer in reply.answers:
            if answer.status >= 500 and answer.status not in may_fail:
                raise Wrong(f"{answer.status}, the server's own failure: {answer.text(80)}")
            if answer.status >= 400 and any(leak in answer.body for leak in _LEAKS[:3]):
                raise Wrong(f"{answer.status} with insides of the server: {answer.text()}")
            if any(secret in answer.body for secret in secrets):
                raise Wrong(f"{answer.status} with the API key in its body")
            if answer.status == 429 and answer.header("retry-after") is None:
                raise Wrong("429 without Retry-After")


def error_of(answer: Answer) -> dict[str, Any]:
    """The error object of an answer in OpenAI's shape. Raises Wrong."""
    if answer.media_type != "application/json":
        raise Wrong(f"{answer.status} with Content-Type {answer.header('content-type')!r}: {answer.text(60)}")
    document = answer.json()
    error = document.get("error") if isinstance(document, dict) else None
    if not isinstance(error, dict):
        raise Wrong(f"{answer.status} without an error object: {answer.text(80)}")
    missing = {"message", "type", "param", "code"} - set(error)
    if missing:
        raise Wrong(f"the error object lacks {', '.join(sorted(missing))}")
    if not isinstance(error["message"], str) or not error["message"].strip():
        raise Wrong(f"error.message is {error['message']!r}")
    if not isinstance(error["type"], str) or error["type"] in ("", "None", "null"):
        raise Wrong(f"error.type is {error['type']!r}")
    for name in ("param", "code"):
        if not (error[name] is None or (isinstance(error[name], str) and error[name] != "None")):
            raise Wrong(f"error.{name} is {error[name]!r}, neither a string nor null")
    return error


def refused(*params: str, statuses: tuple[int, ...] = REFUSALS, codes: tuple[str, ...] = ()) -> Check:
    """One refusal in OpenAI's shape; its `param` is one of these fields, or something inside it."""

    def check(seen: Seen) -> None:
        answer = seen.answer
        if answer.status not in statuses:
            wanted = " or ".join(map(str, statuses))
            raise Wrong(f"{answer.status} where {wanted} must be: {answer.text(80)}")
        error = error_of(answer)
        if params and not any(names(error["param"], param) for param in params):
            raise Wrong(f"error.param is {error['param']!r}, not {' or '.join(params)}")
        if codes and error["code"] not in codes:
            raise Wrong(f"error.code is {error['code']!r}, not {' or '.join(codes)}")

    return check


def names(given: Any, param: str) -> bool:
    """Whether `given` is this field, or a path into it, or (for a path) a field on the way to it."""
    if not isinstance(given, str):
        return False
    inside = given == param or given.startswith((f"{param}.", f"{param}["))
    outer = re.split(r"[.\[]", param)[0]
    return inside or (outer != param and (given == outer or param.startswith((f"{given}.", f"{given}["))))


def answered(*checks: Callable[[Answer], None], statuses: tuple[int, ...] = (200,)) -> Check:
    """The last request is answered with one of these statuses, and its answer passes the checks."""

    def check(seen: Seen) -> None:
        answer = seen.answer
        if answer.status not in statuses:
            raise Wrong(f"{answer.status} where {' or '.join(map(str, statuses))} must be: {answer.text(80)}")
        for one in checks:
            one(answer)

    return check


def supported(*checks: Callable[[Answer], None], params: tuple[str, ...] = ()) -> Check:
    """As `answered`, but a server may refuse it if it names the field: never dropped silently."""
    must = answered(*checks)

    def check(seen: Seen) -> None:
        if seen.answer.status in REFUSALS:
            refused(*params)(seen)
            raise Skipped(f"not supported, and said so: {seen.summary()}")
        must(seen)

    return check


def any_of(*statuses: int, shape: bool = True) -> Check:
    """One of these statuses; a status of 400 and above in OpenAI's shape, unless `shape` is off."""

    def check(seen: Seen) -> None:
        answer = seen.answer
        if answer.status not in statuses:
            raise Wrong(f"{answer.status} where {' or '.join(map(str, statuses))} must be: {answer.text(80)}")
        if shape and answer.status >= 400:
            error_of(answer)

    return check


def turned_away(*statuses: int) -> Check:
    """Bytes that are no request: closed without an answer, or refused once (4xx, 501, 505), and nothing after it.

    With `statuses`, an answer must have one of them. A refusal below HTTP need not have OpenAI's shape.
    """

    def check(seen: Seen) -> None:
        reply = seen.replies[-1]
        _at_most_one(reply)
        if not reply.answers:
            if reply.late:
                raise Wrong("neither refused nor closed in time")
            return
        status = reply.answers[0].status
        if statuses and status not in statuses:
            raise Wrong(f"{status} where {' or '.join(map(str, statuses))} or a closed connection must be")
        if not (400 <= status < 500 or status in (501, 505)):
            raise Wrong(f"{status} for a message that must not be taken")

    return check


def turned_away_or(*statuses: int) -> Check:
    """As `turned_away`, but one of these statuses is right as well; never a second answer."""

    def check(seen: Seen) -> None:
        reply = seen.replies[-1]
        _at_most_one(reply)
        if not (reply.answers and reply.answers[0].status in statuses):
            turned_away()(seen)

    return check


def refused_then(status: int) -> Check:
    """Refused (4xx, 501), and the request behind it is answered with this status or not at all."""

    def check(seen: Seen) -> None:
        reply = seen.replies[-1]
        found = [answer.status for answer in reply.answers]
        if not found and reply.late:
            raise Wrong("neither refused nor closed in time")
        if found and not (400 <= found[0] < 500 or found[0] == 501):
            raise Wrong(f"{found[0]} for a message that must not be taken")
        if found[1:] not in ([], [status]):
            raise Wrong(f"{found}: not the answers to these requests")

    return check


def in_turn(*sequences: tuple[int, ...]) -> Check:
    """The statuses of all answers are one of these sequences, or the connection was closed on the way through one."""

    def check(seen: Seen) -> None:
        reply = seen.replies[-1]
        found = tuple(answer.status for answer in reply.answers)
        begun = bool(found) and reply.closed and any(found == given[: len(found)] for given in sequences)
        if found not in sequences and not begun:
            raise Wrong(f"{found or 'no answer'}{' and closed' if reply.closed else ''}, not {sequences[0]}")
        if reply.rest:
            raise Wrong(f"bytes that are no answer: {reply.rest[:40]!r}")

    return check


def _at_most_one(reply: Reply) -> None:
    if len(reply.answers) > 1:
        raise Wrong(f"{len(reply.answers)} answers to one message: its rest was taken for a request")
    if reply.rest:
        raise Wrong(f"bytes that are no answer: {reply.rest[:40]!r}")


def both(*checks: Check) -> Check:
    """All of these."""

    def check(seen: Seen) -> None:
        for one in checks:
            one(seen)

    return check


def first_of(*checks: Check) -> Check:
    """Any of these is right; otherwise what the first one said."""

    def check(seen: Seen) -> None:
        said: Wrong | None = None
        for one in checks:
            try:
                one(seen)
            except Wrong as wrong:
                said = said or wrong
            else:
                return
        assert said is not None, "at least one check"
        raise said

    return check


def has_header(name: str, pattern: str, *, optional: bool = False) -> Callable[[Answer], None]:
    """The answer carries this header, and its value matches. `optional`: Skipped where it is not sent."""

    def check(answer: Answer) -> None:
        value = answer.header(name)
        if value is None and optional:
            raise Skipped(f"sends no {name}")
        if value is None:
            raise Wrong(f"{answer.status} without {name}")
        if not re.fullmatch(pattern, value, re.IGNORECASE):
            raise Wrong(f"{name}: {value}")

    return check


def has_no_header(*headers: str) -> Callable[[Answer], None]:
    def check(answer: Answer) -> None:
        for name in headers:
            if answer.header(name) is not None:
                raise Wrong(f"{answer.status} with {name}: {answer.header(name)}")

    return check


def is_json(answer: Answer) -> None:
    """A JSON body under its own media type."""
    if answer.media_type != "application/json":
        raise Wrong(f"{answer.status} with Content-Type {answer.header('content-type')!r}")
    answer.json()


def rate_headers(answer: Answer) -> None:
    """`x-ratelimit-*` where there is any: whole numbers that are not negative, durations such as 6m0s."""
    found = {name.lower(): value for name, value in answer.headers if name.lower().startswith("x-ratelimit-")}
    if not found:
        raise Skipped("no limit of this key has a rate header")
    for name, value in found.items():
        ok = _DURATION.match(value) if "reset" in name else value.isdigit()
        if not ok:
            raise Wrong(f"{name}: {value}")
    for metric in ("requests", "tokens"):
        limit, left = (found.get(f"x-ratelimit-{part}-{metric}") for part in ("limit", "remaining"))
        if limit is not None and left is not None and int(left) > int(limit):
            raise Wrong(f"{left} {metric} left of {limit}")


def choices_of(answer: Answer) -> list[dict[str, Any]]:
    """The choices of a whole answer. Raises Wrong."""
    document = answer.json()
    choices = document.get("choices") if isinstance(document, dict) else None
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, dict) for choice in choices):
        raise Wrong(f"{answer.status} without choices: {answer.text(80)}")
    return choices


def content_of(answer: Answer, index: int = 0) -> str:
    """The text of a choice of a chat or a completion. Raises Wrong."""
    choice = choices_of(answer)[index]
    found = choice["message"].get("content") if isinstance(choice.get("message"), dict) else choice.get("text")
    if not isinstance(found, str):
        raise Wrong(f"choice {index} has the content {found!r}")
    return found


def usage_of(answer: Answer) -> dict[str, Any]:
    """The usage of a whole answer, checked for its sum. Raises Wrong."""
    document = answer.json()
    return checked_usage(document.get("usage") if isinstance(document, dict) else None)


def checked_usage(usage: Any) -> dict[str, Any]:
    """Usage whose parts are counts that add up. Raises Wrong."""
    if not isinstance(usage, dict):
        raise Wrong(f"usage is {usage!r}")
    given = [usage.get(name) for name in ("prompt_tokens", "completion_tokens", "total_tokens")]
    counts = [count for count in given if type(count) is int and count >= 0]
    if len(counts) != len(given):
        raise Wrong(f"usage counts {given}")
    prompt, completion, total = counts
    if prompt + completion != total:
        raise Wrong(f"usage: {prompt} + {completion} is not {total}")
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    if not 0 <= cached <= prompt:
        raise Wrong(f"{cached} of {prompt} prompt tokens cached")
    return usage


def one_each(values: Iterable[Any], what: str) -> Any:
    """The one value that all share. Raises Wrong."""
    found = list(dict.fromkeys(values))
    if len(found) != 1:
        raise Wrong(f"{what} is not one: {found[:4]}")
    return found[0]
