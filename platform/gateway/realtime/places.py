"""Where a field stands in an event: what a chat request calls `temperature` is `session.temperature` to this client.

Step 7; pure; used by `conversation.py`, `consumer.py` and `responses.py`. Invariant: `param`, and the path that a
message begins with, are such as the client wrote them: it sent no chat request.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from contracts.errors import Rejected

# Chat fields that an event has under another name: its messages are the response's input.
INPUT = {"messages": "input"}
_FIRST = re.compile(r"[A-Za-z0-9_-]*")


@contextmanager
def placed(place: str, names: Mapping[str, str] = INPUT) -> Iterator[None]:
    """A refusal in the block tells its field as `place.field`. `names`: fields that the client called otherwise."""
    try:
        yield
    except Rejected as error:
        move(error, place=place, names=names)
        raise


def move(error: Rejected, *, place: str, names: Mapping[str, str] = INPUT) -> None:
    """The same of one refusal; of one that names no field nothing is changed."""
    told = error.param
    if told is None or told.partition(".")[0] == place:
        return
    first = _FIRST.match(told)
    top = first.group() if first is not None else ""
    error.param = f"{place}.{names.get(top, top)}{told[len(top) :]}"
    if error.message.startswith(f"{told}:"):
        error.message = error.param + error.message[len(told) :]
