"""What a case is: requests, what must hold of the answers, and where that is written. Pure data.

Made by the tables in `cases/`, sent by `send.py` and `wire.py`, judged by `checks.py`, run by `runner.py`.
Invariant: a case knows neither the server nor its key; `Target.fill` puts both in when it is sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from infra.conformance.target import Target

ANSWER_SECONDS = 120.0  # for one whole answer: a small model on a CPU is slow, a hang is longer
WIRE_SECONDS = 20.0  # for what needs no model, or a few tokens of one
SLOW_SECONDS = 60.0  # by when a server must be rid of a client that sends a byte a second


class Wrong(Exception):
    """What must hold does not; the text says what was seen."""


class Skipped(Exception):
    """The server need not support this, and said so; the text is the reason."""


class Verdict(Enum):
    """How a case ended."""

    OK = "ok"
    WRONG = "wrong"
    SKIPPED = "skipped"


class _Absent(Enum):
    ABSENT = "absent"


ABSENT = _Absent.ABSENT  # as a field's value: the field is left out


@dataclass(frozen=True, slots=True, kw_only=True)
class Http:
    """A well-formed HTTP request. `path` is under the base URL, or from the root where it begins with `root:`.

    `document` goes out as JSON in ASCII, `content` as it is; both with the placeholders of `Target.fill` replaced.
    `key` names whose key is sent: ours, the other one's, or none.
    """

    method: str = "POST"
    path: str = "/chat/completions"
    document: Mapping[str, Any] | None = None
    content: bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()
    key: str | None = "own"
    content_type: str | None = "application/json"
    leave_after: int | None = None  # bytes of the answer's body after which the client hangs up


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """Bytes on a connection of their own, `parts` one after another with `pause` seconds between them.

    `drip` is then repeated with the same pause until the server ends it. `answers`: how many are waited for. `sip`: the
    client reads so many bytes at a time and pauses in between; 0 = as they come.
    """

    parts: tuple[bytes, ...]
    pause: float = 0.0
    drip: bytes = b""
    half_close: bool = False
    answers: int = 1
    sip: int = 0
    deadline: float = WIRE_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One HTTP answer. `complete`: it ended as its own framing says; `pieces`: the chunks it came in."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    complete: bool = True
    pieces: int = 1
    version: str = "HTTP/1.1"

    def header(self, name: str) -> str | None:
        """The first value of this header; names are without case."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    @property
    def media_type(self) -> str:
        return (self.header("content-type") or "").partition(";")[0].strip().lower()

    def json(self) -> Any:
        """The body as strict JSON. Raises Wrong."""
        try:
            return json.loads(self.body.decode("utf-8"), parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise Wrong(f"{self.status} with a body that is not JSON: {self.text(60)}") from error

    def text(self, most: int = 120) -> str:
        """The beginning of the body on one line."""
        return " ".join(self.body[: most * 4].decode("utf-8", "replace").split())[:most]


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """All that came back for one request. `closed`: the server ended the connection; `late`: nothing in time."""

    answers: tuple[Answer, ...] = ()
    interim: tuple[int, ...] = ()
    closed: bool = False
    late: bool = False
    rest: bytes = b""  # bytes after the last answer that are no answer
    switched: tuple[tuple[str, str], ...] = ()  # headers of a 101


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a case's checks judge: the replies, one for each request."""

    target: Target
    replies: tuple[Reply, ...]

    @property
    def answer(self) -> Answer:
        """The first answer to the last request. Raises Wrong when there is none."""
        return self.answer_to(len(self.replies) - 1)

    def answer_to(self, index: int) -> Answer:
        """The first answer to this request. Raises Wrong when there is none."""
        reply = self.replies[index]
        if not reply.answers:
            raise Wrong("no answer in time" if reply.late else "the connection was closed without an answer")
        return reply.answers[0]

    def summary(self) -> str:
        """The last reply in a few words."""
        return summary_of(self.replies[-1]) if self.replies else "nothing was sent"


def summary_of(reply: Reply) -> str:
    if not reply.answers:
        return "nothing in time" if reply.late else "closed without an answer"
    statuses = " ".join(str(answer.status) for answer in reply.answers)
    message = _message_of(reply.answers[-1])
    return f"{statuses}{' and closed' if reply.closed else ''}{': ' + message if message else ''}"


def _message_of(answer: Answer) -> str:
    try:
        error = answer.json()["error"]
        return f"{error['message']}"[:100] if error["param"] is None else f"[{error['param']}] {error['message']}"[:100]
    except (Wrong, KeyError, TypeError):
        return ""


Check = Callable[[Seen], None]
Request = Http | Wire
Step = Request | Callable[[Seen], Request]  # a step may be made from what was seen so far


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One case. `alone`: nothing else runs beside it; `slow`: it waits for a deadline of the server.

    `may_fail`: statuses of 500 and above that are right here.
    """

    name: str
    must: str
    source: str
    steps: tuple[Step, ...]
    check: Check
    alone: bool = False
    slow: bool = False
    may_fail: frozenset[int] = field(default_factory=frozenset)
    group: str = ""
    kind: str = ""

    @property
    def title(self) -> str:
        """What `--list` and the table call it; unique in the suite."""
        return f"{self.kind}: {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A case that was run."""

    case: Case
    verdict: Verdict
    seen: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Cases about one thing; `group` is `openai` (conventions) or `odd` (odd requests)."""

    name: str
    group: str
    about: str
    cases: Sequence[Case]
