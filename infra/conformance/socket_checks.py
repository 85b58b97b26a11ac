"""What must hold of a WebSocket's handshake, events and end. Called by `cases/realtime.py`; pure.

What comes after a 101 stands in a reply's `rest`. A server without the route is skipped, never wrong.
"""

from __future__ import annotations

import json
from typing import Any

from infra.conformance.case import Check, Seen, Skipped, Wrong
from infra.conformance.checks import error_of
from infra.conformance.frames import CLOSE, PONG, TEXT, Frame, parse_frames

_NOT_SERVED = (404, 405, 501)
_OWN_FAILURES = (1011, 4500)
_NEVER_SENT = (1004, 1005, 1006, 1015)


def opened(seen: Seen) -> list[Frame]:
    """The frames after the handshake. Raises Skipped where there is no such route, Wrong where it was refused."""
    reply = seen.replies[-1]
    if 101 not in reply.interim:
        if reply.answers and reply.answers[0].status in _NOT_SERVED:
            raise Skipped("the server has no /realtime")
        raise Wrong(f"no 101: {seen.summary()}")
    frames = list(parse_frames(reply.rest))
    codes = [frame.code for frame in frames if frame.opcode == CLOSE]
    if any(code in _OWN_FAILURES for code in codes):
        raise Wrong(f"closed with {codes[0]}, the server's own failure")
    if any(code in _NEVER_SENT and len(frames[-1].payload) >= 2 for code in codes):
        raise Wrong(f"closed with {codes[0]}, which is never sent")
    if any(secret.encode() in reply.rest for secret in (seen.target.key, seen.target.other_key) if secret):
        raise Wrong("the API key came back")
    return frames


def events_of(frames: list[Frame]) -> list[dict[str, Any]]:
    """The events. Raises Wrong for what is no JSON object with a type."""
    events = []
    for frame in frames:
        if frame.opcode == TEXT:
            try:
                document = json.loads(frame.payload.decode())
            except ValueError as error:
                raise Wrong(f"an event that is no JSON: {frame.payload[:60]!r}") from error
            if not isinstance(document, dict) or not isinstance(document.get("type"), str):
                raise Wrong(f"an event without a type: {frame.payload[:60]!r}")
            events.append(document)
    return events


def not_opened(*statuses: int) -> Check:
    """The handshake is refused in OpenAI's shape, or the connection is closed without a word."""

    def check(seen: Seen) -> None:
        reply = seen.replies[-1]
        if 101 in reply.interim:
            raise Wrong("101: the handshake was taken")
        if not reply.answers:
            if not reply.closed:
                raise Wrong("no answer")
            return
        answer = reply.answers[0]
        if answer.status in _NOT_SERVED and not set(statuses) & set(_NOT_SERVED):
            raise Skipped("the server has no /realtime")
        if answer.status not in statuses:
            raise Wrong(f"{answer.status} where {' or '.join(map(str, statuses))} must be")
        error_of(answer)
        if answer.status == 426 and "websocket" not in (answer.header("upgrade") or "").lower():
            raise Wrong("426 that names no protocol in Upgrade (RFC 9110 15.5.22)")

    return check


def closed(*codes: int) -> Check:
    """The server ends the connection by a Close frame with one of these codes."""

    def check(seen: Seen) -> None:
        ends = [frame for frame in opened(seen) if frame.opcode == CLOSE]
        if not ends:
            raise Wrong("still open" if not seen.replies[-1].closed else "ended without a Close frame")
        if len(ends) > 1:
            raise Wrong("two Close frames")
        if codes and ends[0].code not in codes:
            raise Wrong(f"closed with {ends[0].code}, not {' or '.join(map(str, codes))}")

    return check


def told(*, param: str) -> Check:
    """An `error` event in OpenAI's shape, and no end."""

    def check(seen: Seen) -> None:
        frames = opened(seen)
        errors = [event["error"] for event in events_of(frames) if event["type"] == "error"]
        ends = [frame.code for frame in frames if frame.opcode == CLOSE]
        if ends:
            raise Wrong(f"closed with {ends[0]}")
        if not errors:
            raise Wrong("no error event")
        shape = {"message", "type", "code"} - set(errors[0])
        if shape:
            raise Wrong(f"the error lacks {', '.join(sorted(shape))}")
        given = str(errors[0].get("param"))
        # A field by its place in the event, or by its name alone: both are found with servers.
        if param and not given.startswith((param, f"session.{param}", f"response.{param}")):
            raise Wrong(f"error.param is {errors[0].get('param')!r}, not {param}")

    return check


def goes_on(*kinds: str, pong: bytes | None = None) -> Check:
    """No error and no end; events of these kinds came, and the pong."""

    def check(seen: Seen) -> None:
        frames = opened(seen)
        events = events_of(frames)
        for frame in frames:
            if frame.opcode == CLOSE:
                raise Wrong(f"closed with {frame.code}: {frame.payload[2:60]!r}")
        wrong = [event["error"] for event in events if event["type"] == "error"]
        if wrong:
            raise Wrong(f"error: {str(wrong[0])[:100]}")
        missing = set(kinds) - {event["type"] for event in events}
        if missing:
            raise Wrong(f"no {', '.join(sorted(missing))}")
        if pong is not None and pong not in [frame.payload for frame in frames if frame.opcode == PONG]:
            raise Wrong("no pong with the ping's payload")

    return check


def agreed(*offered: str) -> Check:
    """Taken with one of the subprotocols offered, by its very name, or with none; or the handshake is refused."""

    def check(seen: Seen) -> None:
        reply = seen.replies[-1]
        if 101 not in reply.interim:
            not_opened(400)(seen)
            return
        events_of(opened(seen))
        chosen = [value for name, value in reply.switched if name.lower() == "sec-websocket-protocol"]
        if len(chosen) > 1 or not set(chosen) <= set(offered):
            raise Wrong(f"101 with the subprotocol {', '.join(chosen)[:60]!r}, which nobody offered")

    return check


def unserved(*statuses: int) -> Check:
    """Refused with one of these statuses, or accepted so that a close code says that there is nothing here."""
    refused = not_opened(*statuses)

    def check(seen: Seen) -> None:
        if 101 in seen.replies[-1].interim:
            closed(4404, 4400, 1008)(seen)
        else:
            refused(seen)

    return check


def ended(seen: Seen) -> None:
    """By a Close frame or without a word, but ended, and not as a failure of the server's own."""
    frames = opened(seen)
    if not seen.replies[-1].closed and not any(frame.opcode == CLOSE for frame in frames):
        raise Wrong("still open")


def stands(seen: Seen) -> None:
    """Taken or refused: no failure of the server's own, and no frame that is none."""
    if 101 in seen.replies[-1].interim:
        events_of(opened(seen))
    elif not seen.replies[-1].answers and not seen.replies[-1].closed:
        raise Wrong("nothing in time")
