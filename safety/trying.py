"""Runs a trial (`safety.trial`) in a process of its own, which a deadline ends whatever a rule is busy with.

Called by `services`. Invariants: the text is in the pipes to that process and nowhere else: no argument, no variable,
no file, no log; never more than TRIALS_AT_ONCE in one process of ours, so that serving goes on beside them.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from threading import BoundedSemaphore
from typing import Any

from safety.document import PolicyError
from safety.verdicts import Stage

TEXT_BYTES_MAX = 64 * 1024
CHUNKS_MAX = 4_096
CHUNK_CHARS = 4  # of an answer whose chunks nobody named: about a token
TRIAL_SECONDS_MAX = 20.0  # a validator's process may take most of it to start
TRIALS_AT_ONCE = 2
_COMMAND = (sys.executable, "-m", "safety.trial")
_places = BoundedSemaphore(TRIALS_AT_ONCE)


class TrialRefused(Exception):
    """The trial did not come to its end; the text says why, and is safe to show."""


class TrialsBusy(TrialRefused):
    """As many trials run as may."""


class TrialTooLong(TrialRefused):
    """The deadline came first."""


def try_document(document: dict[str, Any], *, stage: Stage, text: str, chunks: Sequence[int] = ()) -> dict[str, Any]:
    """The fields of `safety.trial.Outcome`. Raises PolicyError, TrialRefused."""
    if not _places.acquire(blocking=False):
        raise TrialsBusy("Other trials are running: try again in a moment.")
    try:
        answer = _ask({"document": document, "stage": stage.value, "text": text, "chunks": list(chunks)})
    finally:
        _places.release()
    if "errors" in answer:
        raise PolicyError([(field, message) for field, message in answer["errors"]])
    outcome: dict[str, Any] = answer["outcome"]
    return outcome


def even_chunks(text: str, size: int | None = None) -> list[int]:
    """Lengths of chunks of `size`; unless named, a token's, or as much more as keeps them within CHUNKS_MAX."""
    if size is None:
        size = max(CHUNK_CHARS, -(-len(text) // CHUNKS_MAX))
    return [min(size, len(text) - at) for at in range(0, len(text), size)]


def _ask(asked: dict[str, Any]) -> dict[str, Any]:
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "LANG": "C.UTF-8",
    }
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter and module
            _COMMAND,
            input=json.dumps(asked).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            timeout=TRIAL_SECONDS_MAX,
            check=True,
            start_new_session=True,
        )
        answer: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise TrialTooLong(f"This took longer than {TRIAL_SECONDS_MAX:.0f} seconds and was ended.") from error
    except (subprocess.CalledProcessError, OSError, ValueError) as error:
        raise TrialRefused("The trial ended without an answer.") from error
    return answer
